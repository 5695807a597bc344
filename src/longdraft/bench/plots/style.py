"""How every plot looks: one color per method in all plots, that of its record, dark on white."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from longdraft.bench.peers.choice import PEERS
from longdraft.methods import CONTROLS, METHODS, elsewhere, family

WIDTH = 5.4  # inches: at the width of a phone its text is still legible
LOSS = "#f6d5d0"
EDGE = "#a03020"
MAX_LABEL = 60  # characters of a label that are drawn
# of other engines, drawn as controls are; of what is unknown
GRAY = family.UNGUIDED.color
OTHER = "#aa4499"
RECORDS = METHODS | CONTROLS
THIN = tuple(name for name, method in RECORDS.items() if method.family.control)
MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":", "-.")
SHADES = (0.0, -0.45, 0.35, -0.25, -0.6)  # toward black (-1) or white (1)


class Look(NamedTuple):
    """How the points and the line of a label are drawn."""

    color: str
    marker: str
    linestyle: str


def color(label: str) -> str:
    """The style of a method with or without options, or of another engine."""
    name = label.split("@")[0]
    if name in RECORDS:
        return RECORDS[name].family.color
    if name.split(" ")[0] in PEERS or name.startswith("hf-"):
        return GRAY
    added = elsewhere.listed()[0].get(name)
    return added.method.family.color if added else OTHER


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """Labels of the same color get different shades of it, markers and lines."""
    chosen: dict[str, Look] = {}
    for label in dict.fromkeys(labels):
        k = sum(color(other) == color(label) for other in chosen)
        shade = SHADES[k % len(SHADES)]
        chosen[label] = Look(
            shaded(color(label), shade), MARKERS[k % len(MARKERS)], DASHES[k % len(DASHES)]
        )
    return chosen


def shaded(color: str, by: float) -> str:
    """A color #rrggbb mixed with white (by > 0) or black."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(
        f"{round(x + (255 - x) * by if by > 0 else x * (1 + by)):02x}" for x in parts
    )


def shown(text: object, wrap: bool = False) -> str:
    """A text of a record as it is drawn: printable, not too long; wrap: every option on its own
    line.
    """
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    line = line if len(line) <= MAX_LABEL else line[: MAX_LABEL - 1] + "…"
    return line.replace("@", "\n@") if wrap else line


def size(context: int) -> str:
    """16384 -> 16K."""
    return f"{context // 1024}K" if context % 1024 == 0 else f"{context}"


def panels(
    rows: int, height: float, title: str, columns: int = 1, width: float = WIDTH
) -> tuple[Any, list[Any]]:
    """-> (figure, its axes row by row); height: inches of each row."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(width, height * rows + 0.6), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    axes = figure.subplots(rows, columns, sharex=True, sharey=columns > 1, squeeze=False)
    return figure, list(axes.flat)


def legend(figure: Any, axes: Any) -> None:
    """Below the axes, in as many columns as its labels leave room for; the figure grows by its
    height.
    """
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(3, 64 // (max(map(len, labels), default=1) + 6)))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.18 * -(-len(labels) // columns) + 0.1)
    figure.legend(
        handles, labels, loc="outside lower left", ncols=columns, fontsize=8, frameon=False
    )


def shade_losses(axes: Any, along: str) -> None:
    """Shade what is slower than plain decoding, where the speedup is along "x" or "y"; call it
    after the limits.
    """
    low = (axes.get_xlim if along == "x" else axes.get_ylim)()[0]
    span, line = (axes.axvspan, axes.axvline) if along == "x" else (axes.axhspan, axes.axhline)
    span(min(low, 0.98), 1, color=LOSS, lw=0, zorder=0)
    line(1, color=EDGE, lw=1, zorder=1)
