"""Draw docs/images/pays.svg: the speedup that `longdraft plan` predicts, and what
benchmarks/records measured.

python docs/pays.py            # needs matplotlib python docs/pays.py --check    # exit status 1 if
the figure does not show what the code predicts and the records say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from figures import keep
from measured import FREE, LONG, ROOT, cells, records
from transformers import LlamaConfig

from longdraft.bench.grouping import spread
from longdraft.bench.plan.acceptance import from_records, of_model, usual
from longdraft.bench.plan.candidates import Candidate, candidates
from longdraft.bench.plan.outlines import Target, quantized, target_on
from longdraft.bench.plan.prediction import predicted
from longdraft.bench.plots.style import legend, looks, panels, shade_losses, size
from longdraft.bench.plots.svg import settings, svg
from longdraft.core import UNBOUNDED
from longdraft.methods.spec import MethodSpec
from longdraft.models.outline import outline_of

FIGURE = ROOT / "docs" / "images" / "pays.svg"
BEST = "avx512bf16"  # the build of the measurements
CONTEXTS = [1 << n for n in range(10, 21)]
ROWS = (1, 8)
SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    num_hidden_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
LLAMA = LlamaConfig(
    vocab_size=128256,
    num_hidden_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
# Panel -> config, kind of weights, machine, methods, and the files of measurements.
PANELS: dict[str, tuple[Any, str | None, str, Sequence[str], Sequence[str]]] = {
    "SmolLM2-135M in 4 bits, 2 CPU cores": (
        SMOLLM2,
        "int4",
        "CPU",
        ("vegas", "magicdec-stream", "suffix"),
        (FREE, LONG),
    ),
    "Llama-3.1-8B, H200: never measured": (LLAMA, None, "H200", ("vegas", "eagle3", "suffix"), ()),
}

Curves = dict[str, list[list[float]]]


def curves(target: Target, methods: Sequence[str], rows: int, files: Sequence[str]) -> Curves:
    """By method: [context, predicted speedup], with the acceptance of the records if there are
    some, else usual.
    """
    known = of_model(
        [r for f in files for r in records(f) if r["task"] in ("speed", "anchored")], "smollm2"
    )
    found, _ = candidates(target, [MethodSpec(m, m) for m in methods], None)

    def speedup(c: Candidate, context: int) -> float:
        def of_depth(depth: int) -> list[int]:
            return c.drafter.price().breadth(min(depth, c.drafter.max_depth), UNBOUNDED)

        acceptance = from_records(known, c.spec, context, of_depth) or usual(c.spec.name)
        return predicted(target, c, rows, context, acceptance).speedup

    return {c.spec.label: [[n, round(speedup(c, n), 3)] for n in CONTEXTS] for c in found}


def measured(methods: Sequence[str], rows: int, files: Sequence[str]) -> Curves:
    """By method: [context, median, least, most] of the cells of all texts; options that differ in
    depth are pooled.
    """
    points: dict[str, dict[int, list[float]]] = {}
    for c in (c for f in files for c in cells(f)):
        method = c.label.split("@")[0]
        if method in methods and c.rows == rows and c.kernels == BEST:
            points.setdefault(method, {}).setdefault(c.context, []).append(c.speedup)
    return {
        m: [[n, *(round(x, 3) for x in spread(points[m][n]))] for n in sorted(points[m])]
        for m in methods
        if m in points
    }


def plotted() -> str:
    """The numbers of the figure as JSON; the SVG carries them as its description."""
    shown = {}
    for title, (config, kind, machine, methods, files) in PANELS.items():
        target = target_on(outline_of(config), machine)
        target = target if kind is None else quantized(target, kind)
        for rows in ROWS:
            side = "one row" if rows == 1 else f"{rows} rows"
            shown[f"{title}, {side}"] = {
                "predicted": curves(target, methods, rows, files),
                "measured": measured(methods, rows, files),
            }
    return json.dumps(shown)


def draw(data: str) -> str:
    """The SVG: lines are predictions; points are medians of measurements, with their range."""
    shown = json.loads(data)
    look = looks(dict.fromkeys(m for part in shown.values() for m in part["predicted"]))
    with settings():
        figure, axes = panels(len(PANELS), 2.6, "", columns=len(ROWS), width=9)
        for a, (title, part) in zip(axes, shown.items(), strict=True):
            for method, line in part["predicted"].items():
                a.plot(
                    *zip(*line, strict=True),
                    color=look[method].color,
                    ls=look[method].linestyle,
                    lw=1.7,
                )
            for method, points in part["measured"].items():
                for context, middle, least, most in points:
                    a.plot(
                        [context, context], [least, most], color=look[method].color, lw=1, alpha=0.5
                    )
                    a.plot(
                        [context],
                        [middle],
                        look[method].marker,
                        color=look[method].color,
                        ms=5,
                        mec="white",
                    )
            a.set_title(title, fontsize=9, loc="left")
            a.set_xscale("log", base=2)
            a.set_xticks(CONTEXTS[::2], [size(n) if n < 1 << 20 else "1M" for n in CONTEXTS[::2]])
            a.minorticks_off()
            a.grid(alpha=0.3)
        for a in axes:
            a.set_ylim(bottom=min(0.7, a.get_ylim()[0]))
            shade_losses(a, "y")
        for method, line in look.items():
            axes[0].plot(
                [], [], line.marker, color=line.color, ls=line.linestyle, ms=5, label=method
            )
        legend(figure, axes[0])
        figure.supylabel("speedup over plain decoding (shaded: slower)", fontsize=9)
        return svg(figure, data)


def main(words: list[str]) -> int:
    return keep(words, FIGURE, plotted(), draw, "docs/pays.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
