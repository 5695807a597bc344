"""The one reader of benchmark records: files of JSON lines, plain or compressed by gzip (*.gz)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longdraft.bench.fields import fault
from longdraft.core.files import parse, read_bytes
from longdraft.errors import InputError

GIVE = "give files that longdraft bench wrote with --out"


def read_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Each line's number, from 1, and its JSON value, without empty lines. Raises InputError with
    file and line.
    """
    try:
        packed = read_bytes(path)
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): {GIVE}") from None
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield i, parse(line)
            except ValueError:
                raise InputError(f"{path}, line {i}: not JSON; {GIVE}") from None


def load(paths: list[Path]) -> list[dict[str, Any]]:
    """All records of `longdraft bench` in the files, each with `where` it stands, as FILE:LINE.
    Raises InputError.
    """
    records = []
    for path in paths:
        for i, record in read_records(path):
            if wrong := fault(record):
                raise InputError(f"{path}, line {i}: not a bench record ({wrong}); {GIVE}")
            records.append(record | {"where": f"{path.name}:{i}"})
    return records
