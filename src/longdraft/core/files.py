"""Reading JSON files that may be damaged or hostile: a valid object, or a one-line error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from longdraft.errors import InputError

MAX_BYTES = 1 << 24  # a config has a few thousand


def parse(text: str, **options: Any) -> Any:
    """json.loads, with a ValueError for JSON that is nested too deeply."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, without NaN or infinity. Raises InputError."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"its {file.stat().st_size >> 20} MB are too large for a config")
        found = parse(file.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is unreadable ({error}): copy or create it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} does not contain a JSON object: copy or create it again")
    return found
