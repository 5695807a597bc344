"""Draw docs/images/speedup.svg from benchmarks/records, or check that it shows what the records
contain.

The numbers are chosen here; the plotting is that of `longdraft report` (`longdraft.bench.plots`).

python docs/figures.py            # needs matplotlib python docs/figures.py --check    # exit status
1 if the plotted numbers are not those of the records
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from measured import BUNDLED, OFFGRID, ROOT, records

from longdraft.bench.grouping import spread
from longdraft.bench.plots.draw import Point, dots
from longdraft.bench.plots.style import panels, shade_losses
from longdraft.bench.plots.svg import settings, svg

FIGURE = ROOT / "docs" / "images" / "speedup.svg"
FILES = (BUNDLED, OFFGRID)
METHODS = ("vegas", "longspec-guided", "budgetdraft", "vegas-reuse", "suffix", "medusa", "auto")
BEST = "avx512bf16"
# Panel -> label -> cell of the bundled model: text, temperature, context, kernel build.
PANELS = {
    "Code and book, sampled (T=1)": {
        "code 16K": ("code", 1.0, 16384, BEST),
        "code 32K": ("code", 1.0, 32768, BEST),
        "book 16K": ("book", 1.0, 16384, BEST),
        "book 32K": ("book", 1.0, 32768, BEST),
    },
    "Code, greedy (repetitive output)": {
        "16K": ("code", 0.0, 16384, BEST),
        "32K": ("code", 0.0, 32768, BEST),
    },
    "Text that drafts badly (T=1)": {
        "noise 512": ("noise.txt", 1.0, 512, BEST),
        "noise 4K": ("noise.txt", 1.0, 4096, BEST),
        "greek 512": ("greek.txt", 1.0, 512, BEST),
        "greek 4K": ("greek.txt", 1.0, 4096, BEST),
    },
    "AVX2 build, code and book": {
        "code 32K, T=1": ("code", 1.0, 32768, "avx2"),
        "book 32K, T=1": ("book", 1.0, 32768, "avx2"),
        "code 32K, greedy": ("code", 0.0, 32768, "avx2"),
    },
}

Cell = tuple[str, float, int, str]


def speedups(file: str = FILES[0], by: str = "method") -> dict[Cell, dict[str, list[float]]]:
    """By cell and method: [median, least, most] of tokens/s over the median of plain decoding in
    the same run.

    One row at a time; by: "label" keeps variants of a method apart.
    """
    found: dict[Cell, dict[str, list[float]]] = {}
    for record in records(file):
        if record["task"] == "speed" and "oracle" not in record and record["batch"] == 1:
            cell = (
                record["text_name"],
                record["temperature"],
                record["context"],
                record["kernels"],
            )
            found.setdefault(cell, {}).setdefault(record[by], []).append(record["tokens_per_s"])
    return {
        cell: {m: _summary([x / median(rates["plain"]) for x in rates[m]]) for m in rates}
        for cell, rates in found.items()
    }


def _summary(values: list[float]) -> list[float]:
    return [round(x, 6) for x in spread(values)]


def plotted() -> str:
    """The numbers of the figure as JSON; the SVG carries them as its description."""
    known = speedups()
    panels = {
        title: {
            label: {m: known[cell][m] for m in METHODS if m in known[cell]}
            for label, cell in cells.items()
        }
        for title, cells in PANELS.items()
    }
    return json.dumps(panels)


def stored(svg: str) -> str:
    """The description in an SVG that `draw` wrote."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", svg, re.S)
    return html.unescape(found[1]) if found else ""


def draw(data: str) -> str:
    """The SVG, with a panel for each entry of PANELS: a point is a median of repeats, a line their
    range.
    """
    with settings():
        figure, rows = panels(2, 2.9, "", columns=2, width=9)
        for axes, (title, cells) in zip(rows, json.loads(data).items(), strict=True):
            dots(
                axes,
                METHODS,
                {label: {m: Point(*x) for m, x in found.items()} for label, found in cells.items()},
            )
            axes.set_title(title, fontsize=10)
            axes.set_xlim(0.4, 4.75)
            shade_losses(axes, "x")
            axes.legend(loc="lower right", fontsize=8)
        figure.supxlabel("Speedup over plain decoding (1 = no gain; shaded = slower)", fontsize=10)
        return svg(figure, data)


def keep(words: list[str], figure: Path, data: str, draw: Callable[[str], str], script: str) -> int:
    """Write the figure, or with --check compare the data that it stores with these -> the exit
    status.
    """
    name = figure.name
    if words != ["--check"]:
        figure.write_text(draw(data), encoding="utf-8")
        print(f"wrote {name}")
        return 0
    same = figure.exists() and stored(figure.read_text(encoding="utf-8")) == data
    print(f"{name} is up to date" if same else f"{name} is out of date: run {script}")
    return 0 if same else 1


def main(words: list[str]) -> int:
    return keep(words, FIGURE, plotted(), draw, "docs/figures.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
