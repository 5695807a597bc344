"""Fill the figures of README.md and the losses of docs/performance.md from benchmarks/records.

    python docs/headlines.py            # after docs/peers.py
    python docs/headlines.py --check    # exit status 1 if a page is not what the records say

A headline is the median over all texts and temperatures that were measured, with the worst cell beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median

import peers
import qwen_coder
import smollm2
from measured import (
    BUNDLED,
    DRAFTED,
    FREE,
    LONG,
    OFFGRID,
    REPETITIVE,
    ROOT,
    Cell,
    cells,
    filled,
    one_line,
    table,
    write_or_check,
)

from longdraft.bench.averages import mean_and_errors, paired

README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
BEST, BAD = "avx512bf16", ("noise", "greek")  # the best build for these processors; texts that draft badly
COPY = "quantspec@draft_weights=int8@draft_kv=int8"
COLUMNS = {"`vegas`": "vegas", "8-bit copy": COPY, "`suffix`": "suffix", "`auto`": "auto"}
TRAINED = ("eagle3", "longspec-chain", "dflash@nodes=12", "medusa@nodes=12")


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
HEAD = f"""Speedup over plain decoding in the same process on 2 cores, with adaptive drafting: **the median over all
texts and temperatures that were measured, and in parentheses the worst of them**. *Repetitive*: settings in which
fewer than {REPETITIVE:.0%} of the output's 3-grams are distinct, which makes it easy to draft."""
OLD = """† Measured before the last change that made kernels and adaptive drafting faster ([how speedup is
measured](docs/performance.md#how-speedup-is-measured))."""


def row(name: str, file: str, wanted: Callable[[Cell], bool]) -> list[str]:
    found = [c for c in cells(file) if wanted(c)]
    settings = {(c.text, c.temperature, c.context): c.repetitive for c in found}
    shown = [_spread([c.speedup for c in found if c.label == label]) for label in COLUMNS.values()]
    origins = "; ".join(dict.fromkeys(c.origin for c in found))
    return [name, f"{len(settings)} ({sum(settings.values())})", *shown, origins]


def _spread(speedups: list[float]) -> str:
    return f"{median(speedups):.2f}x ({min(speedups):.2f}x)" if speedups else ""


def everything() -> list[Cell]:
    """All cells of the files behind the figures, of every method."""
    return [c for file in (qwen_coder.SOURCE, FREE, DRAFTED, LONG, OFFGRID, BUNDLED) for c in cells(file)]


def below(found: list[Cell]) -> str:
    """How many cells lose a tenth or more, and the worst of them."""
    worst = min(found, key=lambda c: c.speedup)
    bad = sum(round(c.speedup, 2) < 0.9 for c in found)
    return (
        f"{bad} of {len(found)} medians are below 0.90x; the worst is `{worst.label}` on {worst.text} after"
        f" {worst.context:,} tokens, at {worst.speedup:.2f}x"
    )


def trained() -> str:
    """The drafters that were trained for SmolLM2."""
    found = [c for c in cells(DRAFTED) if c.kernels == BEST]
    settings = {(c.text, c.temperature) for c in found}
    spreads = [
        f"`{label.split('@')[0]}` {_spread([c.speedup for c in found if c.label == label])}" for label in TRAINED
    ]
    return (
        f"**Drafters trained for SmolLM2**, {len(settings)} settings at 4K, median and worst: {', '.join(spreads)}"
        " ([SmolLM2](docs/results/smollm2.md#trained-drafters))."
    )


def keys() -> str:
    """Vegas beside a window of the same size, over all texts, contexts and budgets that were measured."""
    found = smollm2.records(smollm2.GIVEN) + smollm2.records(smollm2.GIVEN_MORE)
    gains = []
    for group in smollm2.unique(map(smollm2.group, found)):
        same = {(r["method"], smollm2.budget(r)): r for r in found if smollm2.group(r) == group and _default(r)}
        for (method, size), r in same.items():
            if method == "vegas" and (window := same.get(("magicdec-stream", size))):
                mean, simple, clustered = mean_and_errors(paired(r["accepted"], window["accepted"]))
                gains.append((mean, clustered or simple or 0.0))
    low, high = min(gains), max(gains)
    return (
        "**Which keys drafts read**: 5 drafts under `vegas` have a median of"
        f" {median(mean for mean, _ in gains):+.2f} tokens per step over a sink and a window of as many keys"
        f" ({len(gains)} pairs: texts, contexts, shares of 2% to 25%; worst {low[0]:+.2f} ± {low[1]:.2f}, best"
        f" {high[0]:+.2f} ± {high[1]:.2f}; [SmolLM2](docs/results/smollm2.md))."
    )


def _default(r: smollm2.Record) -> bool:
    """Whether a record is of the method as it is, but for budget and depth."""
    return "score=" not in r["label"] and r["options"].get("gamma") == 5


def end_to_end() -> str:
    """With the prompt, which is not sped up."""
    found = [c.end_to_end for c in cells(BUNDLED) if c.rows == 1 and c.text not in BAD]
    return (
        f"**Prompts** are not sped up: end to end, with the prefill, the bundled model's cells are between"
        f" {min(found):.2f}x and {max(found):.2f}x, {median(found):.2f}x in the median."
    )


def readme_block() -> str:
    lines = [row(name, *what) for name, what in ROWS.items()]
    shown = table(["", "settings (repetitive)", *COLUMNS, "revision, processor"], lines)
    parts = [one_line(HEAD), shown, *[one_line(OLD)] * ("†" in shown)]
    losses = f"**Losses**, over all methods and settings in these records: {below(everything())}."
    facts = (losses, trained(), keys(), end_to_end(), qwen_coder.headline(), peers.headline())
    return "\n\n".join([*parts, "\n".join(f"- {fact}" for fact in facts)])


def losses_block() -> str:
    """The losses of docs/performance.md."""
    pages: dict[str, tuple[str, ...]] = {
        "this page": (BUNDLED, OFFGRID),
        "[SmolLM2](results/smollm2.md)": (FREE, DRAFTED, LONG),
    }
    pages["[Qwen2.5-Coder](results/qwen-coder.md)"] = (qwen_coder.SOURCE,)
    lines = [f"- {name}: {below([c for f in files for c in cells(f)])}." for name, files in pages.items()]
    for name, file in {"the bundled model": BUNDLED, "SmolLM2 in bfloat16": OFFGRID}.items():
        bad = [c for c in cells(file) if c.text in BAD]
        lines.append(f"- {name}, text that drafts badly: {below(bad)}.")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    readme = filled(README.read_text(encoding="utf-8"), "figures", readme_block())
    page = filled(PERFORMANCE.read_text(encoding="utf-8"), "losses", losses_block())
    return write_or_check({README: readme, PERFORMANCE: page}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
