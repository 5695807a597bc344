"""Tables of trained drafters from records of trained.sh: tokens per step, and speed over plain decoding.

    python benchmarks/trained_table.py runs/trained/trained.jsonl

Rows are methods, as their options say; columns are a text and a context. Speeds are medians over repeats, each over the
median of plain decoding in the same call of `longdraft bench`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from arguments import Arguments, status

from longdraft.bench.records import read_records
from longdraft.errors import InputError

Cell = tuple[str, str, int, float]  # kernels, text, context, temperature


def cells(files: list[Path]) -> dict[Cell, dict[str, tuple[float, float]]]:
    """{cell: {label: (tokens per step, speed over plain)}}."""
    calls: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in (r for file in files for _, r in read_records(file) if r.get("task") == "speed"):
        context = max(row["context"]) if isinstance(row["context"], list) else row["context"]
        cell = row["kernels"], row["text_name"], context, row["temperature"]
        calls[*cell, row["command"]][row["label"]].append(row)
    found: dict[Cell, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (*cell, _), labels in calls.items():
        plain = median(r["tokens_per_s"] for r in labels["plain"])
        for label, rows in labels.items():
            if label != "plain":
                speed = median(r["tokens_per_s"] for r in rows) / plain
                found[tuple(cell)][label] = median(r["mean_acceptance_length"] for r in rows), speed  # type: ignore[index]
    return dict(found)


def report(files: list[Path]) -> str:
    found = cells(files)
    if not found:
        raise InputError(f"no records of speed in {', '.join(map(str, files))}: run benchmarks/trained.sh")
    labels = dict.fromkeys(label for row in found.values() for label in row)
    heads = [f"{text} {context:,} T={temperature:g} {kernels}" for kernels, text, context, temperature in found]
    lines = ["| method | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for label in labels:
        values = [f"{pair[0]:.2f}, {pair[1]:.2f}x" if (pair := row.get(label)) else "" for row in found.values()]
        lines.append(f"| `{label}` | " + " | ".join(values) + " |")
    return "\n".join(lines)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records of trained.sh")
    return parser


def main(words: list[str] | None = None) -> None:
    print(report(options().parse(words).files))


if __name__ == "__main__":
    sys.exit(status(main))
