"""Plots of acceptance: by position of the draft, and against the budget of keys beside the
controls.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from longdraft.bench.grouping import Record, by_peer, cells
from longdraft.bench.plots.draw import Point, lines, link
from longdraft.bench.plots.style import THIN, legend, panels, size

MAX_POSITIONS = 16  # positions shown


def by_position(records: list[Record]) -> Any:
    """-> figure: the share of steps that accepted each position, a panel per context.

    None without drafts, or if an oracle set their acceptance.
    """
    by_context: dict[int, dict[str, dict[float, Point]]] = {}
    for context, label, same in cells([r for r in records if not by_peer(r) and "oracle" not in r]):
        shares = [r["acceptance_per_position"] for r in same]
        depth = min(max(map(len, shares), default=0), MAX_POSITIONS)
        columns = [[s[i] if i < len(s) else 0.0 for s in shares] for i in range(depth)]
        points = {
            i + 1.0: Point(fmean(c), min(c), max(c), link(same))
            for i, c in enumerate(columns)
            if any(c)
        }
        if points:
            by_context.setdefault(context, {})[label] = points
    if not by_context:
        return None
    figure, rows = panels(len(by_context), 1.7, "Acceptance by position in the draft")
    labels = list(dict.fromkeys(label for series in by_context.values() for label in series))
    for axes, (context, series) in zip(rows, by_context.items(), strict=True):
        lines(axes, {label: series.get(label, {}) for label in labels}, THIN)
        axes.set(ylim=(0, 1.02), ylabel="share of steps")
        axes.set_title(f"context {size(context)}", fontsize=9, loc="left")
        axes.xaxis.get_major_locator().set_params(integer=True)
    rows[-1].set_xlabel("position in the draft (tokens)")
    legend(figure, rows[0])
    return figure


def budget(record: Record) -> int | None:
    """How many cached keys the drafts of a record may read; None for a method without such an
    option.
    """
    options = record.get("options", {})
    if "budget" in options:
        return min(options["budget"], record["context"])
    # the second is its name in older records
    ratio = options.get("keep_ratio", options.get("ratio"))
    least = options.get("min_budget", options.get("floor", 0))
    return (
        None
        if ratio is None
        else min(max(round(ratio * record["context"]), least), record["context"])
    )


def without_budget(record: Record) -> str:
    """The label without the options that set the budget, so that budgets of one method share a
    line.
    """
    name, *options = record["label"].split("@")
    kept = [
        o
        for o in options
        if o.split("=")[0] not in ("budget", "keep_ratio", "ratio", "min_budget", "floor")
    ]
    return "@".join([name, *kept])


def by_budget(records: list[Record]) -> Any:
    """-> figure: accepted length against the share of keys that drafts read. None with a single
    budget per context.
    """
    by_context: dict[int, dict[str, dict[float, Point]]] = {}
    for context, _, (r, *_) in cells(records):
        if (keys := budget(r)) is not None:
            mean = r["mean_acceptance_length"]
            error = r["stderr_clustered"] or r["stderr"] or 0.0
            line = by_context.setdefault(context, {}).setdefault(without_budget(r), {})
            line[100 * keys / context] = Point(mean, mean - error, mean + error, link([r]))
    by_context = {
        c: series for c, series in by_context.items() if max(map(len, series.values())) > 1
    }
    if not by_context:
        return None
    figure, rows = panels(len(by_context), 1.8, "Acceptance against budget (controls in gray)")
    labels = list(dict.fromkeys(label for series in by_context.values() for label in series))
    for axes, (context, series) in zip(rows, by_context.items(), strict=True):
        lines(axes, {label: series.get(label, {}) for label in labels}, THIN)
        axes.set_ylabel("accepted length")
        axes.set_ylim(bottom=min(1, axes.get_ylim()[0]))
        axes.set_title(f"context {size(context)}", fontsize=9, loc="left")
    rows[-1].set_xscale("log")
    _percent_ticks(rows[-1])
    rows[-1].set_xlabel("keys that a draft reads (% of the context)")
    legend(figure, rows[0])
    return figure


def _percent_ticks(axes: Any) -> None:
    low, high = axes.get_xlim()
    ticks = [t for t in (0.5, 1, 2, 3, 5, 7, 10, 15, 25, 50, 100) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
