"""The price of drafts that a small model makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longdraft.costs.counts import ModelCounts, pass_over
from longdraft.costs.passes import Pass, PassCosts
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine
from longdraft.views.base import Policy

NEAR = 16  # at most this many missing tokens of a row run in the root's pass
PART = 128  # tokens of a pass that reads, as it is predicted


@dataclass(frozen=True, kw_only=True)
class SmallModelPrice(DraftPrice):
    """The root's pass, with the tokens of about one step, then one for each level but the last.

    counts: of the small model. depth: the target's layers; None: as many as the small model's.
    most: tokens of an excerpt of which nothing was read yet; 0: the
    whole sequence. left: tokens that the excerpts of rows leave out; None: nothing was read of this
    one yet.
    """

    counts: ModelCounts
    policy: Policy
    widths: Sequence[int]
    depth: int | None = None
    most: int = 0
    left: Sequence[int | None] = field(default=())

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(w, width) for w in self.widths[:depth]]

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        widths = self.levels(depth, width)
        if not widths:
            return 0.0
        excerpts = self.excerpts(lengths)
        chain = self.counts.one_call and set(widths) == {1}
        later = {w: costs.seconds(self._pass(excerpts, w, chain)) for w in set(widths[:-1])}
        first = costs.seconds(self._pass(excerpts, 2))
        handled = 0.0 if chain else costs.tree * sum(widths)
        return first + sum(later[w] for w in widths[:-1]) + handled

    def planned(self, machine: PlannedMachine) -> SmallModelPrice:
        """A model without weights is taken to be computed as the target is."""
        there = machine.target
        one_call = self.counts.one_call or there.one_call
        return replace(self, counts=replace(self.counts, one_call=one_call, device=there.device))

    def excerpts(self, lengths: Lengths) -> list[int]:
        """The length of each row's excerpt before its root."""
        left = self.left or [None if self.most else 0] * lengths.rows
        rows = zip(lengths.slots, left, strict=True)
        return [min(n, self.most - 1) if x is None else n - x for n, x in rows]

    def reading(self, held: Sequence[int], lengths: Lengths) -> list[Pass]:
        """The passes that read the excerpts of rows from token `held` on."""
        return [
            replace(
                pass_over(self.counts, [begin], min(PART, length - begin)),
                drawn=0.0,
                layers=self._layers,
            )
            for first, length in zip(held, self.excerpts(lengths), strict=True)
            for begin in range(first, length - NEAR, PART)
        ]

    def _pass(self, lengths: list[int], nodes: int, chained: bool = False) -> Pass:
        work = pass_over(self.counts, lengths, nodes, seen=self.policy.seen, chained=chained)
        return replace(work, layers=self._layers)

    @property
    def _layers(self) -> float:
        """The share of the target's fixed costs. On GPUs, where a layer's launches take longer than
        its work, these grow with the layers; on CPUs, where they are few, all of them count.
        """
        if self.depth is None or self.counts.device != "cuda":
            return 1.0
        return self.counts.depth / self.depth
