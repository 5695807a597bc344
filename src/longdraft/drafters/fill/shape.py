"""The draft that a step asks of the inner drafter beside what can be copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from longdraft.drafters.adaptive.decision import Draft
from longdraft.drafters.adaptive.pace import Pace, kept
from longdraft.drafters.fill.growth import Prefix


class Promise(NamedTuple):
    """A draft and what it promises. rate: tokens per plain step. gain: plain steps that it saves
    beside the copied nodes, if what it needs has been captured already.
    """

    rate: float
    draft: Draft
    gain: float


def best_shape(
    pace: Pace,
    copy: Prefix,
    levels: Mapping[int, float],
    copy_cost: float,
    deepest: int,
    dearest: float,
) -> Promise | None:
    """The shape that promises the most tokens per plain step beside the copied nodes; None: these
    alone promise as much.

    A level is reached where the draft or the copied nodes reach it; the likelier of both counts,
    since both are right about the same tokens. levels: {depth: the chance that a copied node is
    accepted}. copy_cost: of a step with the copied nodes alone. deepest: levels that there may be.
    dearest: the most that a step may cost.
    """
    table = pace.table
    assert table is not None
    accepted = pace.acceptance
    rate = max(copy.rate * pace.constants.copy_margin, pace.margin)
    best: Promise | None = None
    means = accepted.means([table.sizes[w] for w in table.widths])
    left = kept(pace.stays, pace.constants)
    look = table.look / pace.stays
    for width, mean in zip(table.widths, means, strict=True):
        expected = accepted.expected(width, mean, table.levels[width], left)
        nodes = 0.0
        tokens = copy.tokens
        for depth in range(1, min(len(expected), deepest + 1)):
            reached = expected[depth][0] - expected[depth - 1][0]
            nodes += table.levels[width][depth - 1]
            tokens += max(reached - levels.get(depth, 0.0), 0.0)
            verified = table.verify(copy.count + nodes) - table.verify(copy.count)
            cost = copy_cost + table.draft[width][depth] + look + verified
            if cost > dearest or reached < pace.constants.rare:
                break
            if tokens > rate * cost:
                rate = tokens / cost
                gain = tokens / max(copy.rate, 1.0) - (cost - look)
                best = Promise(rate, Draft(depth, width), gain)
    return best
