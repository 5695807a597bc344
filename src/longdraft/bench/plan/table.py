"""A plan as tables: all methods at one context, or what to choose at several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from longdraft.bench.plan.acceptance import USUAL
from longdraft.bench.plan.outlines import Target
from longdraft.bench.plan.prediction import Prediction
from longdraft.costs.counts import pass_over

MARGIN = 1.02  # a speedup that is not above this is none


class Table(NamedTuple):
    """A table with a line above it and notes below; the first column is text, the others are
    numbers.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def size(context: int) -> str:
    """32768 -> 32K, 1048576 -> 1M."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if context >= unit and context % unit == 0:
            return f"{context // unit}{name}"
    return f"{context:,}"


def title(target: Target, name: str, rows: int, context: str) -> str:
    """The model, the machine, and what a plain step reads: weights, and keys of the rows."""
    side = "" if rows == 1 else f"{rows} rows of "
    weights = target.counts.weights.read(rows) / 1e9
    slot = pass_over(target.counts, [1], 1).keys / 1024
    how = "measured here" if target.measured else "by bandwidth and rates"
    return (
        f"{name} on {target.machine} ({how}), {side}{context} tokens; a plain step reads "
        f"{weights:.3g} GB of weights"
        f" and {slot:.3g} KB per token of context"
    )


def at_one_context(
    target: Target, name: str, rows: int, context: int, found: Sequence[Prediction]
) -> Table:
    """Every method with its times, best first."""
    header = [
        "method",
        "draft",
        "draft ms",
        "verify ms",
        "step ms",
        "break-even",
        "tokens",
        "",
        "speedup",
    ]
    lines = [
        [
            f"{p.label}{'*' if p.lacking else ''}",
            str(p.depth) if p.nodes == p.depth else f"{p.depth} ({p.nodes} nodes)",
            *(f"{1e3 * seconds:.3g}" for seconds in (p.draft, p.verify, p.step)),
            f"{p.break_even:.2f}",
            f"{p.tokens:.2f}",
            p.origin,
            f"{p.speedup:.2f}x",
        ]
        for p in found
    ]
    plain = f"{1e3 * found[0].plain:.3g} ms" if found else "-"
    notes = [
        f"A plain step takes {plain}. Break-even: tokens per step at which a method is as fast."
    ]
    return Table(
        title(target, name, rows, f"{context:,}"),
        header,
        lines,
        notes + _notes(target, found, [context]),
    )


def over_contexts(
    target: Target, name: str, rows: int, found: Mapping[int, Sequence[Prediction]]
) -> list[Table]:
    """The method to choose at each context, then where each method pays."""
    every = [p for ranking in found.values() for p in ranking]
    lacking = any(p.lacking for p in every)
    header = ["context", "plain ms", "choose", "break-even", "tokens", "speedup"]
    header += ["with drafter weights", "speedup"] if lacking else []
    lines = []
    for context, ranking in found.items():
        own = _best([p for p in ranking if not p.lacking])
        mark = "†" if context > target.lm.positions else ""
        line = [f"{size(context)}{mark}", f"{1e3 * ranking[0].plain:.3g}" if ranking else "-"]
        line += (
            [f"{own.label} ({own.depth})", f"{own.break_even:.2f}", f"{own.tokens:.2f}"]
            if own
            else ["plain"]
        )
        line += [f"{own.speedup:.2f}x"] if own else ["-", "-", "1.00x"]
        best = _best(ranking)
        gains = lacking and best is not None and (own is None or best.speedup > own.speedup)
        line += (
            [f"{best.label}* ({best.depth})", f"{best.speedup:.2f}x"]
            if gains and best
            else ["-", "-"] * lacking
        )
        lines.append(line)
    contexts = f"{size(min(found))} to {size(max(found))}"
    choose = Table(
        title(target, name, rows, contexts), header, lines, ["In brackets: the depth of the draft."]
    )
    return [choose, _where(target, found, every)]


def _where(
    target: Target, found: Mapping[int, Sequence[Prediction]], every: Sequence[Prediction]
) -> Table:
    by_method: dict[str, list[Prediction]] = {}
    for p in every:
        by_method.setdefault(p.label, []).append(p)
    best = sorted(by_method.values(), key=lambda ps: -max(p.speedup for p in ps))
    lines = []
    for ps in best:
        top = max(ps, key=lambda p: p.speedup)
        pays = ranges([p.context for p in ps if p.speedup > MARGIN], sorted(found))
        label = f"{top.label}{'*' if top.lacking else ''}"
        lines.append([label, pays, f"{top.speedup:.2f}x", size(top.context), top.origin])
    notes = _notes(target, every, sorted(found))
    return Table(
        "Where each method pays", ["method", "pays", "best", "at", "acceptance"], lines, notes
    )


def ranges(pays: Sequence[int], contexts: Sequence[int]) -> str:
    """The contexts at which something pays, in words: "from 32K", "up to 8K", "4K to 16K"."""
    if not pays:
        return "nowhere"
    if len(pays) == len(contexts):
        return "everywhere"
    spans: list[list[int]] = []
    for i, context in enumerate(contexts):
        if context in pays:
            if spans and spans[-1][1] == i - 1:
                spans[-1][1] = i
            else:
                spans.append([i, i])
    return ", ".join(_span(contexts, low, high) for low, high in spans)


def _span(contexts: Sequence[int], low: int, high: int) -> str:
    first = size(contexts[low])
    last = size(contexts[high])
    if high == len(contexts) - 1:
        return f"from {first}" if low < high else f"at {first}"
    if low == 0:
        return f"up to {last}"
    return f"at {first}" if low == high else f"{first} to {last}"


def _best(ranking: Sequence[Prediction]) -> Prediction | None:
    """The highest speedup; None if plain decoding is as fast."""
    best = max(ranking, key=lambda p: p.speedup, default=None)
    return best if best is not None and best.speedup > MARGIN else None


def _notes(target: Target, found: Sequence[Prediction], contexts: Sequence[int]) -> list[str]:
    notes = []
    if any(p.origin == USUAL for p in found):
        notes.append(
            "usual: acceptance differs by model and text; measure it with `longdraft "
            "bench`, then --records."
        )
    if any(p.lacking for p in found):
        notes.append(
            "* needs drafter weights, which are not beside the model: counted for an "
            "untrained drafter's size."
        )
    if max(contexts) > target.lm.positions:
        notes.append(
            f"† beyond the {target.lm.positions:,} positions of the model's config (--rope "
            "extends them)."
        )
    return notes
