"""Writes the records of a run as the repository keeps them: compressed, and shorter.

    python benchmarks/keep_records.py runs/tasks.jsonl benchmarks/records/2026-12-01.jsonl.gz

Numbers are rounded to six digits, and outputs are left out; equal records give equal files.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from arguments import Arguments, status

from longdraft.bench.records import read_records

OUTPUTS = ("text", "token_ids")
DIGITS = 6


def shortened(value: Any) -> Any:
    """The same value with DIGITS digits of every number that is no integer."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [shortened(each) for each in value]
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    return value


def kept(records: list[dict[str, Any]], outputs: bool) -> bytes:
    """The file of these records. outputs: with their texts and tokens."""
    left_out = () if outputs else OUTPUTS
    lines = [
        json.dumps({name: shortened(x) for name, x in record.items() if name not in left_out})
        for record in records
    ]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("records", type=Path, metavar="RECORDS", help="the file of a run")
    parser.add_argument("to", type=Path, metavar="FILE", help="the file to write")
    parser.add_argument("--with-outputs", action="store_true", help="keep texts and tokens")
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    records = [record for _, record in read_records(given.records)]
    given.to.write_bytes(kept(records, given.with_outputs))


if __name__ == "__main__":
    sys.exit(status(main))
