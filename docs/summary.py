"""The table of README.md from benchmarks/records, and the origin of its rows for
docs/performance.md.

docs/headlines.py writes both. A row has the median over all settings that were measured, and the
worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

import peers
import qwen_coder
from measured import BUNDLED, DRAFTED, FREE, Cell, Record, cells, dates, listed, records, table

BEST = "avx512bf16"  # the best build for the processors of the records
BAD = ("noise", "greek")  # texts that draft badly
TRAINED = ("eagle3", "longspec-chain", "dflash@nodes=12", "medusa@nodes=12")
DEFAULT = "2026-11-26-default.jsonl.gz"
AGAIN = "2026-11-26-default-again.jsonl.gz"
BUILDS = "2026-11-26-default-builds.jsonl.gz"
SAMPLED = "2026-11-26-default-avx2.jsonl.gz"
OTHERS = "2026-11-26-trained-builds.jsonl.gz"  # trained drafters on other builds
ENGINES = {
    "llama.cpp": "llama.cpp",
    "openvino": "OpenVINO",
    "transformers": "Transformers",
    "hf": "Transformers",
}
COMMON = 0.9  # the best method is one that was measured in this share of a row's settings
COLUMNS = ["model and task", "context", "plain decoding over the fastest other engine (worst)"]
COLUMNS += ["best method over plain decoding", "worst"]


@dataclass(frozen=True)
class Beside:
    """Plain decoding over the fastest other engine's plain decoding, in one run on one text at one
    context.
    """

    model: str
    text: str
    context: int
    engine: str
    ratio: float
    origin: str
    date: str


@dataclass(frozen=True)
class Row:
    """Cells that a row of the README pools, the file with other engines, and the methods to choose
    from (None: all).
    """

    name: str
    files: tuple[str, ...]
    wanted: Callable[[Cell], bool]
    engines: str | None = None
    among: tuple[str, ...] | None = None


def _one(kernels: str, model: str) -> Callable[[Cell], bool]:
    return lambda c: c.rows == 1 and c.model == model and c.kernels == kernels and c.text not in BAD


def _coder(model: str) -> Callable[[Cell], bool]:
    return lambda c: c.model == model and c.context <= qwen_coder.TRAINED and c.kernels == BEST


ROWS = (
    Row(
        "Qwen2.5-Coder-0.5B, code and tasks",
        (qwen_coder.SOURCE,),
        _coder(qwen_coder.SMALL),
        qwen_coder.SOURCE,
    ),
    Row(
        "Qwen2.5-Coder-1.5B, code and tasks",
        (qwen_coder.SOURCE,),
        _coder(qwen_coder.LARGE),
        qwen_coder.SOURCE,
    ),
    Row(
        "SmolLM2-135M, four texts",
        (FREE, DEFAULT, AGAIN, DRAFTED),
        _one(BEST, "smollm2"),
        peers.SOURCE,
    ),
    Row("SmolLM2-135M, trained drafters", (DRAFTED,), _one(BEST, "smollm2"), among=TRAINED),
    Row("SmolLM2-135M, AVX2 kernels", (FREE, BUILDS, SAMPLED, OTHERS), _one("avx2", "smollm2")),
    Row("bundled model (5 M), code and a book", (BUNDLED,), _one(BEST, "bundled"), BUNDLED),
)


def pooled(row: Row) -> list[Cell]:
    return [c for file in row.files for c in cells(file) if row.wanted(c)]


def setting(c: Cell) -> tuple[str, float, int]:
    return c.text, c.temperature, c.context


def best(found: list[Cell], among: Iterable[str] | None = None) -> str:
    """The method with the largest median, of those that were measured in nearly all settings."""
    labels = dict.fromkeys(c.label for c in found if among is None or c.label in among)
    everywhere = len({setting(c) for c in found})
    common = [
        x for x in labels if len({setting(c) for c in found if c.label == x}) >= COMMON * everywhere
    ]
    return max(common, key=lambda x: median(c.speedup for c in found if c.label == x))


@cache
def beside(file: str) -> list[Beside]:
    """Of each run, text and context with another engine's plain decoding in a file."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in records(file):
        if r["task"] in ("speed", "suite") and (r["label"] == "plain" or engine(r)):
            groups.setdefault((r["run"], r["text_name"], str(r["context"])), []).append(r)
    found = []
    for same in groups.values():
        theirs = rates(r for r in same if engine(r))
        if not theirs:
            continue
        mine = rates(r for r in same if not engine(r))["plain"]
        name = max(theirs, key=lambda name: theirs[name])
        about = peers.origin(same[0]), same[0]["time"][:10]
        text = same[0].get("suite") or same[0]["text_name"]
        found.append(
            Beside(same[0]["model"], text, same[0]["context"], name, mine / theirs[name], *about)
        )
    return found


def engine(r: Record) -> str | None:
    """The name of the other engine that decoded plainly; None: it is ours, or it speculated."""
    if r.get("method", "").startswith("hf-"):
        return ENGINES["hf"]
    alone = r.get("options", {}).get("speculation", "none") == "none"
    return ENGINES.get(r["peer"].split(" ")[0]) if "peer" in r and alone else None


def rates(found: Iterable[Record]) -> dict[str, float]:
    """The median rate of each engine, of ours as `plain`; of several settings of an engine the
    fastest.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for r in found:
        groups.setdefault((engine(r) or "plain", r["label"]), []).append(r["tokens_per_s"])
    fastest: dict[str, float] = {}
    for (name, _), values in groups.items():
        fastest[name] = max(median(values), fastest.get(name, 0.0))
    return fastest


def engines(row: Row) -> list[Beside]:
    models = {c.model for c in pooled(row)}
    return [b for b in beside(row.engines) if b.model in models] if row.engines else []


def shown_engines(found: list[Beside]) -> str:
    if not found:
        return ""
    names = listed(list(dict.fromkeys(b.engine for b in found)))
    worst = f" ({min(b.ratio for b in found):.2f}x)" if len(found) > 1 else ""
    return f"{names} {median(b.ratio for b in found):.2f}x{worst}"


def block() -> str:
    """The table of README.md."""
    lines = []
    for row in ROWS:
        found = pooled(row)
        label = best(found, row.among)
        speedups = [c.speedup for c in found if c.label == label]
        first = [row.name, contexts(c.context for c in found), shown_engines(engines(row))]
        lines.append([*first, f"`{label}` {median(speedups):.2f}x", f"{min(speedups):.2f}x"])
    return table(COLUMNS, lines)


def contexts(found: Iterable[int]) -> str:
    """The shortest and the longest."""
    known = sorted(set(found))
    return " to ".join(dict.fromkeys(_size(n) for n in (known[0], known[-1])))


def _size(context: int) -> str:
    return f"{context // 1000 if context % 1024 else context // 1024}K"


def origins() -> str:
    """Where the rows of README.md come from, for docs/performance.md."""
    lines = []
    for row in ROWS:
        found = pooled(row)
        theirs = engines(row)
        label = best(found, row.among)
        same = [c for c in found if c.label == label]
        origin = "; ".join(dict.fromkeys([*(c.origin for c in same), *(b.origin for b in theirs)]))
        days = dates([*(c.date for c in same), *(b.date for b in theirs)])
        counts = [
            f"{len(same)} ({sum(c.repetitive for c in same)})",
            str(len(theirs)) if theirs else "",
        ]
        lines.append([row.name, f"`{label}`", *counts, days, origin])
    head = [
        "row of the README",
        "best method",
        "its cells (repetitive)",
        "cells of other engines",
        "measured",
    ]
    return table([*head, "revision, processor"], lines)
