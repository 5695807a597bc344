"""What the pages' generators share: records, cells of speed measurements, and blocks of a page that
are filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from longdraft.bench.records import read_records

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "records"
BUNDLED = "2026-11-22-cpu-bundled.jsonl.gz"
OFFGRID = "2026-11-22-cpu-smollm2.jsonl.gz"
FREE = "2026-11-23-smollm2-free.jsonl.gz"
LONG = "2026-11-23-smollm2-long.jsonl.gz"
DRAFTED = "2026-11-26-trained.jsonl.gz"
# in FREE and LONG with weights that are gone
EARLIER = (
    "longspec",
    "eagle3",
    "medusa",
    "tokenswift",
    "budgetdraft",
)
ZEN = {"25, model 17": "Zen 4", "26, model 2": "Zen 5"}  # processors by family and model
# by day, for records that do not name them (docs/log)
UNNAMED = {
    "2026-11-22": "Zen 5",
    "2026-11-23": "Zen 4",
}
# records since then have the current speed of the kernels and of adaptive drafting
KERNELS = "2026-11-24T16:02"
REPETITIVE = (
    0.6  # an output with a smaller share of distinct 3-grams repeats itself, which is easy to draft
)

Record = dict[str, Any]


def records(name: str) -> list[Record]:
    found = [record for _, record in read_records(RECORDS / name)]
    return [
        r for r in found if name not in (FREE, LONG) or not r.get("method", "").startswith(EARLIER)
    ]


@dataclass(frozen=True)
class Cell:
    """One method on one text, sampled in one way, at one context: the median of its repeats over
    plain decoding's.

    text: of a task of a suite, with its turn. rows: decoded side by side. repetitive: whether plain
    decoding's output repeats itself. end_to_end: the speedup with the prompt's prefill.
    """

    label: str
    text: str
    temperature: float
    context: int
    rows: int
    kernels: str
    speedup: float
    end_to_end: float
    repetitive: bool
    origin: str
    model: str
    date: str


@cache
def cells(name: str) -> list[Cell]:
    """Those of real acceptance and adaptive drafting in a file of records, without plain decoding
    and other engines.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for r in records(name):
        ours = "oracle" not in r and "peer" not in r and not r["method"].startswith("hf-")
        if ours and r["task"] in ("speed", "suite"):
            turn = f", turn {r['turn']}" if r.get("turns", 1) > 1 else ""
            text = r["text_name"].removesuffix(".txt") + turn
            groups.setdefault((r["run"], text, r["context"], r["label"]), []).append(r)
    found = []
    for (run, text, context, label), same in groups.items():
        if label == "plain" or "@pace=off" in label:
            continue
        plain = groups[run, text, context, "plain"]
        first = same[0]
        speedup, end_to_end = (
            median(r[rate] for r in same) / median(r[rate] for r in plain)
            for rate in ("tokens_per_s", "tokens_per_s_end_to_end")
        )
        repetitive = median(r["distinct_3"] for r in plain) < REPETITIVE
        setting = (
            label,
            text,
            first["temperature"],
            context,
            first["batch"],
            first["kernels"],
            speedup,
            end_to_end,
        )
        found.append(Cell(*setting, repetitive, origin(first), first["model"], first["time"][:10]))
    return found


def origin(r: Record) -> str:
    """The revision and the processor; a dagger: before KERNELS."""
    processor = next(
        (name for part, name in ZEN.items() if part in r["device"]), UNNAMED.get(r["time"][:10], "")
    )
    return f"{r['git_sha'][:7]}, {processor or r['device']}{'†' * (r['time'] < KERNELS)}"


def dates(days: Iterable[str]) -> str:
    """The first and the last day."""
    known = sorted(set(days))
    return " to ".join(dict.fromkeys((known[0], known[-1])))


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown; numbers stand on the right."""
    head, *lines = [list(header), *map(list, rows)]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    )


def listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def one_line(text: str) -> str:
    """A paragraph that the source breaks into lines."""
    return " ".join(text.split())


def filled(page: str, block: str, text: str) -> str:
    """A page whose block between `<!-- BLOCK: begin ... -->` and `<!-- BLOCK: end -->` is this
    text.
    """
    head, begin, rest = page.partition(f"<!-- {block}: begin")
    about, arrow, rest = rest.partition("-->")
    inside, end, tail = rest.partition(f"<!-- {block}: end -->")
    if not (begin and arrow and end) or "<!--" in inside:
        raise ValueError(f"the page has no block {block}")
    return f"{head}{begin}{about}{arrow}\n{text.strip()}\n{end}{tail}"


def write_or_check(
    pages: dict[Path, str], arguments: list[str], source: str = "the records say"
) -> int:
    """Write the pages, or with --check return 1 and name those that are not what their source
    says.
    """
    old = {page: page.read_text(encoding="utf-8") for page in pages}
    if arguments == ["--check"]:
        for page in (wrong := [page for page in pages if pages[page] != old[page]]):
            print(f"{page.relative_to(ROOT)} is not what {source}")
        return int(bool(wrong))
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    return 0
