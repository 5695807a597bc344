"""Tables of default settings beside the best fixed ones.

    python benchmarks/default_table.py runs/default/default.jsonl

Reads records of default.sh and default_tasks.sh. A cell is a model, a build, a text or the turn of
a task, a context, a number of rows and of new tokens, and a temperature. Of each method and cell:
its default's speed over that of its best fixed setting, and over plain decoding; for auto, over the
best of all other methods and settings. Speeds are medians over repeats.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from arguments import Arguments, status

from longdraft.bench.records import read_records
from longdraft.errors import InputError

TASKS = ("speed", "suite")
NO_GAIN = 1.02  # of plain decoding: where nothing else is faster, there is nothing to gain
KEYS = ("model", "kernels", "text_name", "context", "batch", "new_tokens", "temperature")
Cell = tuple[Any, ...]


def in_full(row: dict[str, Any]) -> str:
    """The text or task, and the turn if there are several."""
    return row["text_name"] + (f", turn {row['turn']}" if row.get("turns", 1) > 1 else "")


def speeds(files: list[Path]) -> dict[Cell, dict[str, float]]:
    """{cell: {label: tokens per second}}."""
    found: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (r for file in files for _, r in read_records(file) if r.get("task") in TASKS):
        row["text_name"] = in_full(row)
        # of each row of a batch
        cell = tuple(max(x) if isinstance(x := row[k], list) else x for k in KEYS)
        found[cell][row["label"]].append(row["tokens_per_s"])
    return {
        cell: {label: median(each) for label, each in labels.items()}
        for cell, labels in found.items()
    }


def compared(cells: dict[Cell, dict[str, float]]) -> dict[str, dict[Cell, tuple[float, float]]]:
    """{method: {cell: (over its best fixed setting, over plain)}}; auto's rival is the best of all
    other settings.
    """
    rows: dict[str, dict[Cell, tuple[float, float]]] = defaultdict(dict)
    for cell, by_label in cells.items():
        if "plain" not in by_label:
            continue
        for label in (name for name in by_label if "@" not in name and name != "plain"):
            rivals = [
                v
                for k, v in by_label.items()
                if k.startswith(f"{label}@") or (label == "auto" and k != "auto")
            ]
            if rivals:
                rows[label][cell] = (
                    by_label[label] / max(rivals),
                    by_label[label] / by_label["plain"],
                )
    return dict(rows)


def tenth(values: list[float]) -> float:
    """What nine in ten values reach."""
    return quantiles(values, n=10, method="inclusive")[0] if len(values) > 1 else values[0]


def table(title: str, groups: dict[str, list[tuple[float, float]]]) -> list[str]:
    lines = [
        f"| {title} | cells | of fixed: median | nine in ten | worst | of plain: median | "
        "nine in ten | worst |"
    ]
    lines.append("| --- |" + " ---: |" * 7)
    for name, pairs in groups.items():
        figures = [f(list(x)) for x in zip(*pairs, strict=True) for f in (median, tenth, min)]
        lines.append(f"| {name} | {len(pairs)} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")
    return lines


def report(files: list[Path]) -> str:
    rows = compared(speeds(files))
    if not rows:
        raise InputError(
            f"no records of default settings in {', '.join(map(str, files))}: run "
            "benchmarks/default.sh"
        )
    whole = {name: list(cells.values()) for name, cells in rows.items()}
    parts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, cells in rows.items():
        for cell, pair in cells.items():
            model, build, _, context, batch, _, temperature = cell
            how = "sampled" if temperature else "greedy"
            rows_of = f", {batch} rows" if batch > 1 else ""
            parts[f"{name}, {model}, {build}, {context} of context, {how}{rows_of}"].append(pair)
    still = {
        f"{name}, where nothing gains": pairs
        for name, cells in rows.items()
        if (pairs := [p for p in cells.values() if p[1] / p[0] <= NO_GAIN])
    }
    worst = sorted(
        (pair[1], name, cell) for name, cells in rows.items() for cell, pair in cells.items()
    )[:8]
    lines = [
        *table("default", whole | still),
        "",
        *table("default", dict(sorted(parts.items()))),
        "",
        "The worst, of plain:",
        "",
    ]
    lines += [f"- {ratio:.2f}: {name}, {', '.join(map(str, cell))}" for ratio, name, cell in worst]
    return "\n".join(lines)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records of default.sh")
    return parser


def main(words: list[str] | None = None) -> None:
    print(report(options().parse(words).files))


if __name__ == "__main__":
    sys.exit(status(main))
