"""Shapes that plots share: points with ranges along x, lines over x, stacked bars. Points link to
their records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from longdraft.bench.grouping import Record, anchor
from longdraft.bench.plots.style import MARKERS, color, looks, shown

PAGE = "../report.html"  # from a plot's own file; the page itself drops it


class Point(NamedTuple):
    """A value, the range around it, and where its records are listed."""

    value: float
    least: float
    most: float
    url: str | None = None


def link(records: list[Record]) -> str | None:
    return f"{PAGE}#{anchor(records)}" if "record" in records[0] else None


def dots(axes: Any, rows: Sequence[str], cells: Mapping[str, Mapping[str, Point]]) -> None:
    """A row per method, in its color; the marker tells the cell. cells: {cell: {row: Point}}."""
    step = min(0.2, 0.7 / max(len(cells), 1))
    for i, (cell, points) in enumerate(cells.items()):
        marker = MARKERS[i % len(MARKERS)]
        for row, p in points.items():
            y = rows.index(row) + step * (i - (len(cells) - 1) / 2)
            c = color(row)
            axes.plot([p.least, p.most], [y, y], color=c, lw=1.2, alpha=0.55, zorder=2)
            axes.plot(
                [p.value], [y], marker, color=c, ms=4.5, mec="white", mew=0.4, url=p.url, zorder=3
            )
        axes.plot([], [], marker, color="#333333", ms=4.5, label=cell)
    axes.set_yticks(range(len(rows)), [shown(row, wrap=True) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)


def lines(
    axes: Any, series: Mapping[str, Mapping[float, Point]], dashed: Sequence[str] = ()
) -> None:
    """A line per label over x, with ranges; a label of `dashed` is drawn thinner, as a control."""
    for label, look in looks(series).items():
        points = sorted(series[label].items())
        thin = label in dashed
        style = {"color": look.color, "ls": look.linestyle, "lw": 1.1 if thin else 1.7}
        axes.plot([x for x, _ in points], [p.value for _, p in points], **style, zorder=3)
        for x, p in points:
            axes.plot([x, x], [p.least, p.most], color=look.color, lw=1, alpha=0.45, zorder=2)
            axes.plot(
                [x],
                [p.value],
                look.marker,
                color=look.color,
                ms=4.5,
                mec="white",
                mew=0.4,
                url=p.url,
                zorder=4,
            )
        axes.plot([], [], marker=look.marker, ms=4.5, label=shown(label), **style)
    axes.grid(alpha=0.3)


def bars(
    axes: Any,
    rows: Mapping[str, Mapping[str, float]],
    colors: Mapping[str, str],
    urls: Sequence[Any],
) -> None:
    """A stacked bar per row. rows: {row: {part: length}}; parts that a row lacks are left out."""
    for y, (parts, url) in enumerate(zip(rows.values(), urls, strict=True)):
        left = 0.0
        for part, length in parts.items():
            axes.barh(
                y,
                length,
                0.68,
                left=left,
                color=colors[part],
                edgecolor="white",
                lw=0.5,
                url=url,
                zorder=2,
            )
            left += length
        axes.annotate(
            f"{left:.3g}", (left, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    axes.set_yticks(range(len(rows)), [shown(row, wrap=True) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.09)
    axes.grid(axis="x", alpha=0.3)
