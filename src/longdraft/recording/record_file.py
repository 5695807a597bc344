"""Writes files of benchmark records, one JSON object per line.

`longdraft.bench.records` reads them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from longdraft.errors import InputError


class RecordFile:
    """A file of JSON lines to which records are appended one by one.

    Without a path, records are dropped.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self._sizes = []
        self._end = 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
            except OSError as error:
                raise InputError(
                    f"cannot write {path} ({error.strerror}): give another --out"
                ) from None

    def append(self, record: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = (json.dumps(record) + "\n").encode()
        with self.path.open("ab") as f:
            f.write(line)
            self._end = f.tell()
        self._sizes.append(len(line))

    def amend(self, records: list[dict[str, Any]]) -> None:
        """Rewrite the newest records with values known only now.

        Nothing is done if another process has written since.
        """
        if self.path is None or self.path.stat().st_size != self._end:
            return
        first = len(self._sizes) - len(records)
        os.truncate(self.path, self._end - sum(self._sizes[first:]))
        del self._sizes[first:]
        for record in records:
            self.append(record)
