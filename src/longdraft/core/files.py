"""Reading JSON files that may be damaged or hostile: a valid object, or a one-line error."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from longdraft.errors import InputError

MAX_BYTES = 1 << 24  # a config has a few thousand


def read_bytes(file: Path) -> bytes:
    """The content of a file or a pipe.

    Raises OSError, also for a device: some never end.
    """
    mode = file.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device", str(file))
    return file.read_bytes()


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
        content = parse(read_bytes(file).decode("utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is unreadable ({error}): copy or create it again") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} does not contain a JSON object: copy or create it again")
    return content
