"""Plots of task `speed`: speedup against context, and tokens per second beside other engines."""

from __future__ import annotations

from typing import Any

from longdraft.bench.grouping import Record, by_peer, cells, ratios, spread
from longdraft.bench.plots.draw import Point, dots, lines, link
from longdraft.bench.plots.style import legend, panels, shade_losses, shown, size


def speedup(records: list[Record]) -> Any:
    """-> figure: speedup over plain decoding against context; with one context, by method. None
    without drafts.
    """
    by_label: dict[str, dict[int, Point]] = {}
    for context, label, same in cells([r for r in records if not by_peer(r)]):
        gains = ratios(same, records, "speedup")
        if label != "plain" and gains:
            by_label.setdefault(label, {})[context] = Point(*spread(gains), link(same))
    contexts = sorted({context for points in by_label.values() for context in points})
    if not by_label:
        return None
    return (
        _by_context(by_label, contexts) if len(contexts) > 1 else _by_method(by_label, contexts[0])
    )


def _by_context(by_label: dict[str, dict[int, Point]], contexts: list[int]) -> Any:
    figure, (axes,) = panels(1, 2.7, "Speedup against context")
    beside = (contexts[-1] / contexts[0]) ** 0.014  # ranges at one context stand beside each other
    lines(
        axes,
        {
            label: {c * beside**i: p for c, p in by_label[label].items()}
            for i, label in enumerate(by_label)
        },
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [size(c) for c in contexts])
    axes.minorticks_off()
    axes.set(xlabel="context (tokens)", ylabel="speedup over plain (×)\nshaded: slower")
    axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]))
    shade_losses(axes, "y")
    legend(figure, axes)
    return figure


def _by_method(by_label: dict[str, dict[int, Point]], context: int) -> Any:
    rows = list(by_label)
    figure, (axes,) = panels(
        1, 0.4 + 0.16 * _lines(rows), f"Speedup at a context of {size(context)}"
    )
    dots(axes, rows, {size(context): {label: by_label[label][context] for label in rows}})
    axes.set_xlabel("speedup over plain (×); shaded: slower")
    axes.set_xlim(left=min(0.9, axes.get_xlim()[0]))
    shade_losses(axes, "x")
    return figure


def beside_peers(records: list[Record]) -> Any:
    """-> figure: tokens per second of all methods and other engines. None without other engines."""
    if not any(map(by_peer, records)):
        return None
    by_context: dict[str, dict[str, Point]] = {}
    best: dict[str, float] = {}
    for context, label, same in cells(records):
        p = Point(*spread([r["tokens_per_s"] for r in same]), link(same))
        by_context.setdefault(size(context), {})[label] = p
        best[label] = max(p.value, best.get(label, 0))
    ours = {r["label"]: not by_peer(r) for r in records}
    rows = sorted(best, key=lambda label: (not ours[label], -best[label]))
    figure, (axes,) = panels(
        1, 0.5 + (0.09 + 0.03 * len(by_context)) * _lines(rows), "Speed beside other engines"
    )
    dots(axes, rows, by_context)
    axes.axhline(sum(ours.values()) - 0.5, color="#333333", lw=0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second after the prefill; marker: context")
    legend(figure, axes)
    return figure


def _lines(rows: list[str]) -> int:
    return sum(2 + shown(row, wrap=True).count("\n") for row in rows)
