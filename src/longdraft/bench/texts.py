"""Real text that every machine has: the source files of Python's standard library."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longdraft.errors import InputError
from longdraft.models.loading import BUNDLED, token_ids


def held_out_files() -> list[Path]:
    """Files of the standard library that the bundled models were not trained on, as far as this Python has them."""
    try:
        patterns = json.loads((BUNDLED / "holdout.json").read_text(encoding="utf-8"))["patterns"]
    except (OSError, ValueError, KeyError):
        raise InputError("the bundled model's holdout.json is missing: reinstall longdraft") from None
    root = Path(sysconfig.get_path("stdlib"))
    files = [root / p.removeprefix("stdlib/") for p in patterns if p.startswith("stdlib/")]
    return [f for f in files if f.is_file()]


def held_out_code() -> str:
    return "\n\n".join(f.read_text(encoding="utf-8") for f in held_out_files())


def stdlib_files() -> list[Path]:
    """Source files of the standard library: held-out files first, smaller files before larger ones."""
    held_out = held_out_files()
    return _by_size(held_out) + _by_size(set(Path(sysconfig.get_path("stdlib")).glob("*.py")) - set(held_out))


def _by_size(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda p: (p.stat().st_size, p.name))


def stdlib_prompt(tokenizer: Any, tokens: int) -> tuple[list[int], list[str]]:
    """A prompt of exactly `tokens` tokens of code -> (token ids, names of its files). The last file is cut.

    Raises InputError if the standard library is too short.
    """
    ids: list[int] = []
    names: list[str] = []
    for path in stdlib_files():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        names.append(path.name)
        ids += token_ids(tokenizer, f"# {path.name}\n{text}\n\n", add_special_tokens=False)
        if len(ids) >= tokens:
            return ids[:tokens], names
    raise InputError(f"this Python's standard library has {len(ids)} tokens, not {tokens}: give a shorter context")
