"""Plots of where the time goes: of a new token by method, and of one decoding step."""

from __future__ import annotations

from statistics import median
from typing import Any

from longdraft.bench.grouping import STEP_PARTS, Record, by_peer, cells, step_parts
from longdraft.bench.plots.draw import bars, link
from longdraft.bench.plots.style import legend, panels, shown, size

COLORS = {
    "drafting": "#0072b2",
    "verifying": "#e69f00",
    "the rest": "#999999",
    "drafter's start": "#cc79a7",
}
STEP = {"one token": "#000000", "7 drafts": "#0072b2", "verifying 8 rows": "#e69f00"}
STEP["choosing and copying keys"] = "#009e73"


def per_token(records: list[Record]) -> Any:
    """-> figure: milliseconds per new token by method, a panel per context. None without drafts."""
    by_context: dict[int, dict[str, list[Record]]] = {}
    for context, label, same in cells([r for r in records if not by_peer(r)]):
        by_context.setdefault(context, {})[label] = same
    if max((len(methods) for methods in by_context.values()), default=0) < 2:
        return None
    tall = max(
        sum(2 + shown(label, wrap=True).count("\n") for label in methods)
        for methods in by_context.values()
    )
    figure, rows = panels(len(by_context), 0.3 + 0.15 * tall, "Where the time of a token goes")
    for axes, (context, methods) in zip(rows, by_context.items(), strict=True):
        _stacked(
            axes,
            {label: _parts(same) for label, same in methods.items()},
            COLORS,
            list(methods.values()),
        )
        axes.set_title(f"context {size(context)}", fontsize=9, loc="left")
    rows[-1].set_xlabel("milliseconds per new token (the middle repeat)")
    legend(figure, rows[0])
    return figure


def _parts(same: list[Record]) -> dict[str, float]:
    """Milliseconds per new token of the repeat in the middle, so that the parts add up."""
    r = sorted(same, key=lambda r: r["decode_s"])[(len(same) - 1) // 2]
    tokens = sum(r["new_tokens"]) if isinstance(r["new_tokens"], list) else r["new_tokens"]
    rest = max(r["decode_s"] - r["draft_s"] - r["verify_s"], 0.0)
    seconds = dict(
        zip(COLORS, (r["draft_s"], r["verify_s"], rest, r.get("start_s", 0.0)), strict=True)
    )
    return {part: 1e3 * s / max(tokens, 1) for part, s in seconds.items()}


def of_a_step(records: list[Record]) -> Any:
    """-> figure: the parts of one decoding step beside plain decoding's (task steps). None if some
    were not timed.
    """
    steps = {}
    sources = []
    for context in sorted({r["context"] for r in records}):
        same = {r["label"]: r for r in records if r["context"] == context}
        ms = {label: median(r["ms"]) for label, r in same.items()}
        if not ms.keys() >= STEP_PARTS:
            continue
        steps[f"plain, {size(context)}"] = {"one token": ms["plain"]}
        steps[f"vegas, {size(context)}"] = step_parts(ms)
        sources += [[same["plain"]], [same["draft at 7%"]]]
    if not steps:
        return None
    figure, (axes,) = panels(1, 0.5 + 0.32 * len(steps), "Where the time of a step goes")
    _stacked(axes, steps, STEP, sources)
    axes.set_xlabel("milliseconds (a step of vegas gives 1 to 8 tokens)")
    legend(figure, axes)
    return figure


def _stacked(
    axes: Any, rows: dict[str, dict[str, float]], colors: dict[str, str], of: list[list[Record]]
) -> None:
    bars(axes, rows, colors, [link(records) for records in of])
    most = max(sum(parts.values()) for parts in rows.values())
    for part, color in colors.items():
        if any(parts.get(part, 0) > most / 200 for parts in rows.values()):  # what can be seen
            axes.barh([0], [0], color=color, label=part)
