"""JSON from files that others wrote: an object, or one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from longdraft.errors import InputError

MOST = 1 << 24  # bytes: a config has a few thousand


def parse(text: str, **options: Any) -> Any:
    """json.loads; what is nested too deeply to read is a ValueError as well."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of settings: no NaN, no infinity. Raises InputError."""
    try:
        if file.stat().st_size > MOST:
            raise ValueError(f"it has {file.stat().st_size >> 20} MB, which no config has")
        found = parse(file.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is unreadable ({error}): copy or make it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no JSON object: copy or make it again")
    return found
