"""Fill the table of README.md and the tables of docs/performance.md on all models from
benchmarks/records.

    python docs/headlines.py            # after docs/peers.py
    python docs/headlines.py --check    # exit status 1 if a page is not what the records say

A headline is the median over all texts and temperatures that were measured, with the worst cell
beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median

import qwen_coder
import smollm2
import summary
from measured import (
    BUNDLED,
    DRAFTED,
    FREE,
    LONG,
    OFFGRID,
    ROOT,
    Cell,
    cells,
    dates,
    filled,
    table,
    write_or_check,
)
from summary import BAD, BEST, TRAINED

from longdraft.bench.averages import mean_and_errors, paired

README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
COPY = "quantspec@draft_weights=int8@draft_kv=int8"
COLUMNS = {"`vegas`": "vegas", "8-bit copy": COPY, "`suffix`": "suffix", "`auto`": "auto"}
DEFAULTS = (summary.DEFAULT, summary.AGAIN, summary.BUILDS, summary.SAMPLED, summary.OTHERS)
PAGES = {
    "this page": (BUNDLED, OFFGRID),
    "[SmolLM2](results/smollm2.md)": (FREE, DRAFTED, LONG),
    "[Qwen2.5-Coder](results/qwen-coder.md)": (qwen_coder.SOURCE,),
    "[default settings and other builds](log/2026-11.md)": DEFAULTS,
}


def _one(kernels: str, bad: bool = False) -> Callable[[Cell], bool]:
    return lambda c: c.rows == 1 and c.kernels == kernels and (c.text in BAD) is bad


def _trained_for(model: str) -> Callable[[Cell], bool]:
    return lambda c: c.model == model and c.context <= qwen_coder.TRAINED and c.kernels == BEST


# Row of the table -> the file of its cells, and which of them.
ROWS: dict[str, tuple[str, Callable[[Cell], bool]]] = {
    "Qwen2.5-Coder-0.5B (4-bit file), code and tasks, 1K to 30K tokens": (
        qwen_coder.SOURCE,
        _trained_for(qwen_coder.SMALL),
    ),
    "Qwen2.5-Coder-1.5B, the same, 1K and 8K": (qwen_coder.SOURCE, _trained_for(qwen_coder.LARGE)),
    "SmolLM2-135M (4-bit file), 1K to 7K tokens": (FREE, _one(BEST)),
    "the same, AVX2, 4K": (FREE, _one("avx2")),
    "SmolLM2 after 16K and 32K tokens (YaRN)": (LONG, _one(BEST)),
    "SmolLM2 in bfloat16, 1K to 16K tokens": (OFFGRID, _one(BEST)),
    "the same, AVX2, 1K to 7K": (OFFGRID, _one("avx2")),
    "the same, text that drafts badly, 4K": (OFFGRID, _one(BEST, bad=True)),
    "8 rows of SmolLM2 in bfloat16 side by side, 7K": (OFFGRID, lambda c: c.rows == 8),
    "bundled model (5 M), 16K and 32K tokens": (BUNDLED, _one(BEST)),
    "the same, AVX2": (BUNDLED, _one("avx2")),
    "the same, text that drafts badly, 512 and 4K": (BUNDLED, _one(BEST, bad=True)),
}


def row(name: str, file: str, wanted: Callable[[Cell], bool]) -> list[str]:
    found = [c for c in cells(file) if wanted(c)]
    settings = {summary.setting(c): c.repetitive for c in found}
    shown = [_spread([c.speedup for c in found if c.label == label]) for label in COLUMNS.values()]
    origins = "; ".join(dict.fromkeys(c.origin for c in found))
    counts = f"{len(settings)} ({sum(settings.values())})"
    return [name, counts, *shown, dates(c.date for c in found), origins]


def _spread(speedups: list[float]) -> str:
    return f"{median(speedups):.2f}x ({min(speedups):.2f}x)" if speedups else ""


def models_block() -> str:
    lines = [row(name, *what) for name, what in ROWS.items()]
    return table(["", "settings (repetitive)", *COLUMNS, "measured", "revision, processor"], lines)


def trained_block() -> str:
    """The drafters that were trained for SmolLM2, and n-grams on the same texts."""
    found = [c for c in cells(DRAFTED) if c.kernels == BEST]
    lines = []
    for label in (*TRAINED, "suffix"):
        same = [c for c in found if c.label == label]
        counts = f"{len(same)} ({sum(c.repetitive for c in same)})"
        middle = f"{median(c.speedup for c in same):.2f}x"
        worst = f"{min(c.speedup for c in same):.2f}x"
        lines.append(
            [f"`{label.split('@')[0]}`", counts, middle, worst, same[0].date, same[0].origin]
        )
    return table(
        ["drafter", "settings (repetitive)", "median", "worst", "measured", "revision, processor"],
        lines,
    )


def keys_block() -> str:
    """Vegas beside a window of the same size, over all texts, contexts and budgets that were
    measured.
    """
    found = smollm2.records(smollm2.GIVEN) + smollm2.records(smollm2.GIVEN_MORE)
    gains = []
    for group in smollm2.unique(map(smollm2.group, found)):
        same = {
            (r["method"], smollm2.budget(r)): r
            for r in found
            if smollm2.group(r) == group and _default(r)
        }
        for (method, size), r in same.items():
            if method == "vegas" and (window := same.get(("magicdec-stream", size))):
                mean, simple, clustered = mean_and_errors(paired(r["accepted"], window["accepted"]))
                gains.append((mean, clustered or simple or 0.0))
    ends = [f"{mean:+.2f} ± {error:.2f}" for mean, error in (min(gains), max(gains))]
    line = [
        str(len(gains)),
        f"{median(mean for mean, _ in gains):+.2f}",
        *ends,
        dates(r["time"][:10] for r in found),
    ]
    return table(
        ["pairs (texts, contexts, shares of 2% to 25%)", "median", "worst", "best", "measured"],
        [line],
    )


def _default(r: smollm2.Record) -> bool:
    """Whether a record is of the method as it is, but for budget and depth."""
    return "score=" not in r["label"] and r["options"].get("gamma") == 5


def prompts_block() -> str:
    """With the prompt, which is not sped up."""
    found = [c for c in cells(BUNDLED) if c.rows == 1 and c.text not in BAD]
    each = [c.end_to_end for c in found]
    line = [
        str(len(each)),
        *(f"{x:.2f}x" for x in (median(each), min(each), max(each))),
        dates(c.date for c in found),
    ]
    return table(["cells of the bundled model", "median", "worst", "best", "measured"], [line])


def engines_block() -> str:
    """Plain decoding over the fastest other engine, by model, text and context."""
    found = dict.fromkeys(b for row in summary.ROWS for b in summary.engines(row))
    lines = [
        [f"{b.model}, {b.text}", f"{b.context:,}", b.engine, f"{b.ratio:.2f}x", b.date, b.origin]
        for b in found
    ]
    head = [
        "model, text",
        "context",
        "fastest engine",
        "plain over it",
        "measured",
        "revision, processor",
    ]
    return table(head, lines)


def everything() -> list[Cell]:
    """All cells of the files behind the figures, of every method."""
    return [c for files in PAGES.values() for file in files for c in cells(file)]


def losses(found: list[Cell]) -> int:
    """How many cells lose a tenth or more."""
    return sum(round(c.speedup, 2) < 0.9 for c in found)


def losses_block() -> str:
    groups = {name: [c for f in files for c in cells(f)] for name, files in PAGES.items()}
    for name, file in {"the bundled model": BUNDLED, "SmolLM2 in bfloat16": OFFGRID}.items():
        groups[f"{name}, text that drafts badly"] = [c for c in cells(file) if c.text in BAD]
    lines = []
    for name, found in {"all": everything(), **groups}.items():
        worst = min(found, key=lambda c: c.speedup)
        where = f"`{worst.label}` on {worst.text}, {worst.context:,} tokens"
        lines.append([name, f"{len(found):,}", str(losses(found)), f"{worst.speedup:.2f}x", where])
    return table(["records of", "cells", "below 0.90x", "worst", "which"], lines)


def does_not_pay() -> str:
    """Two sentences for README.md."""
    found = everything()
    return (
        "Drafts lose on text that they predict badly, with many rows side by side on a "
        "CPU, and on models so small that"
        " a step takes less than a millisecond. Adaptive drafting then returns to plain "
        "decoding, but finding out costs"
        f" time: {losses(found)} of {len(found):,} measured cells lose a tenth or more."
    )


BLOCKS = {
    "origins": summary.origins,
    "models": models_block,
    "engines": engines_block,
    "trained": trained_block,
    "keys": keys_block,
    "prompts": prompts_block,
    "losses": losses_block,
}


def main(arguments: list[str]) -> int:
    readme = README.read_text(encoding="utf-8")
    page = PERFORMANCE.read_text(encoding="utf-8")
    for name, block in BLOCKS.items():
        page = filled(page, name, block())
    readme = filled(filled(readme, "figures", summary.block()), "losses", does_not_pay())
    return write_or_check({README: readme, PERFORMANCE: page}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
