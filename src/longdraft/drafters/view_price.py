"""Prices of drafts that a model makes under a policy's view of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longdraft.costs.counts import ModelCounts, pass_over
from longdraft.costs.passes import PassCosts
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine
from longdraft.models.memory_traffic import InCodes
from longdraft.views.base import Policy


@dataclass(frozen=True, kw_only=True)
class ViewPrice(DraftPrice):
    """counts: of the passes of the model that drafts. widths: nodes of each level."""

    counts: ModelCounts
    policy: Policy
    widths: Sequence[int]

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(w, width) for w in self.widths[:depth]]

    def planned(self, machine: PlannedMachine) -> ViewPrice:
        return replace(self, counts=machine.target)

    def pass_seconds(
        self, costs: PassCosts, lengths: Lengths, nodes: int, chained: bool = False
    ) -> float:
        """Predicted seconds of a pass under the view, with draws from its logits."""
        codes = InCodes(self.policy.coded, self.policy.bits)
        work = pass_over(
            self.counts,
            lengths.slots,
            nodes,
            seen=self.policy.seen,
            codes=codes,
            chained=chained,
        )
        return costs.seconds(work)


@dataclass(frozen=True, kw_only=True)
class SelfDraftPrice(ViewPrice):
    """A pass for the root, then one for each level but the last."""

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        widths = self.levels(depth, width)
        if not widths:
            return 0.0
        chain = self.counts.one_call and set(widths) == {1}
        later = {w: self.pass_seconds(costs, lengths, w, chain) for w in set(widths[:-1])}
        first = self.pass_seconds(costs, lengths, 1)
        handled = 0.0 if chain else costs.tree * sum(widths)
        return first + sum(later[w] for w in widths[:-1]) + handled

    def planned(self, machine: PlannedMachine) -> SelfDraftPrice:
        return replace(self, counts=machine.copy)


@dataclass(frozen=True, kw_only=True)
class HierarchicalPrice(ViewPrice):
    """Price of repeated inner drafts, each with a pass of the middle level, until the usual
    acceptance of their tokens is reached: at least one, and on average not a whole number.

    inner: the price of an inner draft.
    """

    inner: DraftPrice

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        deep = min(self.inner.max_depth, depth)
        accepted = sum(self.inner.usual) / 2
        tokens = 1 + sum(accepted**i for i in range(1, deep + 1))
        middle = self.pass_seconds(costs, lengths, 1 + self.inner.nodes(deep, width))
        inner = self.inner.seconds(costs, lengths, deep, width)
        return max(depth / tokens, 1.0) * (middle + inner + costs.step)

    def planned(self, machine: PlannedMachine) -> HierarchicalPrice:
        return replace(self, counts=machine.target, inner=self.inner.planned(machine))
