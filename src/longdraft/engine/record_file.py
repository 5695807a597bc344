"""Files of benchmark records, one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from longdraft.core.files import parse
from longdraft.errors import InputError


class RecordFile:
    """A file of JSON lines that records are appended to one by one; without a path, records are dropped."""

    def __init__(self, path: Path | None):
        self.path, self._sizes, self._end = path, [], 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
            except OSError as error:
                raise InputError(f"cannot write {path} ({error.strerror}): give another --out") from None

    def append(self, record: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = (json.dumps(record) + "\n").encode()
        with self.path.open("ab") as f:
            f.write(line)
            self._end = f.tell()
        self._sizes.append(len(line))

    def amend(self, records: list[dict[str, Any]]) -> None:
        """Rewrite the newest records with values known only now, unless another process has written since."""
        if self.path is None or self.path.stat().st_size != self._end:
            return
        first = len(self._sizes) - len(records)
        os.truncate(self.path, self._end - sum(self._sizes[first:]))
        del self._sizes[first:]
        for record in records:
            self.append(record)


def load(paths: list[Path]) -> list[dict[str, Any]]:
    """All records of the files, each with `where` it stands, as FILE:LINE. Raises InputError with the file and line."""
    records = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path} ({error}): give files that longdraft bench --out wrote") from None
        for i, line in enumerate(lines, 1):
            try:
                record = parse(line) if line.strip() else None
            except ValueError:
                raise InputError(f"{path}, line {i}: not JSON; give files that longdraft bench --out wrote") from None
            if record is None:
                continue
            if not isinstance(record, dict) or not {"task", "method", "context"} <= record.keys():
                raise InputError(f"{path}, line {i}: not a bench record (it lacks task, method or context)")
            records.append(record | {"where": f"{path.name}:{i}"})
    return records
