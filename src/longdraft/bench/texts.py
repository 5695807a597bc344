"""Long real text that is on every machine: the standard library's own source files."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

from longdraft.errors import InputError
from longdraft.models.loading import BUNDLED, token_ids


def stdlib_files() -> list[Path]:
    """Source files of this Python's standard library, smallest first; those the bundled models never saw come first."""
    root = Path(sysconfig.get_path("stdlib"))
    try:
        patterns = json.loads((BUNDLED / "holdout.json").read_text(encoding="utf-8"))["patterns"]
    except (OSError, ValueError, KeyError):
        patterns = []
    unseen = [root / p.removeprefix("stdlib/") for p in patterns if p.startswith("stdlib/")]
    return _by_size([p for p in unseen if p.is_file()]) + _by_size(set(root.glob("*.py")) - set(unseen))


def _by_size(files: Any) -> list[Path]:
    return sorted(files, key=lambda p: (p.stat().st_size, p.name))


def stdlib_prompt(tokenizer: Any, tokens: int) -> tuple[list[int], list[str]]:
    """A code-completion context of exactly `tokens` tokens -> (ids, the files in it): whole files, the last one cut.

    So what is to be continued is code, in mid-file, with other real code before it.
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
    raise InputError(
        f"this Python's standard library gives {len(ids)} tokens of text, not {tokens}: give a shorter context"
    )
