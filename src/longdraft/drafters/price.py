"""The price of a draft, predicted from the lengths of the rows: one class for each kind of drafter.

A drafter hands out its price (`Drafter.price`). A run decides by it what to draft, and
`longdraft plan` recommends methods by the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Self

from longdraft.core import UNBOUNDED, Sequences
from longdraft.costs.counts import ModelCounts
from longdraft.costs.passes import PassCosts


@dataclass(frozen=True)
class Lengths:
    """The committed slots of each row."""

    slots: list[int]

    @classmethod
    def of(cls, seqs: Sequences) -> Lengths:
        return cls(seqs.cache.length.tolist())

    @property
    def rows(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class PlannedMachine:
    """The machine that a plan is for, which need not be this one, and the library that computes its
    passes.

    target: counts of the target's passes there. copy: counts of what drafts in the target's place,
    as a quantized copy. compiled: whether native kernels compute a drafter's own block there.
    """

    target: ModelCounts
    copy: ModelCounts
    compiled: bool


@dataclass(frozen=True, kw_only=True)
class DraftPrice:
    """The size and the seconds of drafts within limits. By default a chain, with a pass of the
    target for each level.

    max_depth: the deepest level of a draft. usual: the acceptance of a drafted token that is
    expected before any was seen, greedy and sampled. finds: the share of steps in which the drafter
    usually finds something to draft. rough: whether the seconds are only a guess, as for a block
    that torch computes.
    """

    max_depth: int = UNBOUNDED
    usual: tuple[float, float] = (0.6, 0.5)
    finds: float = 1.0
    rough: bool = False

    def levels(self, depth: int, width: int) -> list[int]:
        """How many nodes a draft within these limits adds to each row, level by level: at most, or
        where that is rare, usually.
        """
        return [1] * min(depth, self.max_depth) if width else []

    def nodes(self, depth: int, width: int) -> int:
        """The nodes of all levels."""
        return sum(self.levels(depth, width))

    def breadth(self, depth: int, width: int) -> list[int]:
        """The nodes of each level by which acceptance is predicted."""
        return self.levels(depth, width)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        """Predicted seconds of one draft within these limits, of all rows together."""
        return depth * costs.call

    def planned(self, machine: PlannedMachine) -> DraftPrice:
        """The price of such drafts on another machine."""
        return self


@dataclass(frozen=True, kw_only=True)
class SumOfPrices(DraftPrice):
    """The price of drafters that each draft within the same limits."""

    parts: Sequence[DraftPrice]

    @classmethod
    def of(cls, parts: Sequence[DraftPrice], max_depth: int) -> Self:
        """Expects the first one's usual acceptance of all."""
        return cls(
            max_depth=max_depth,
            usual=parts[0].usual,
            finds=max(part.finds for part in parts),
            rough=any(part.rough for part in parts),
            parts=parts,
        )

    def levels(self, depth: int, width: int) -> list[int]:
        return added(part.levels(depth, width) for part in self.parts)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        return sum(part.seconds(costs, lengths, depth, width) for part in self.parts)

    def planned(self, machine: PlannedMachine) -> SumOfPrices:
        return replace(self, parts=[part.planned(machine) for part in self.parts])


@dataclass(frozen=True, kw_only=True)
class InTurnPrice(SumOfPrices):
    """The price of drafters that add to one tree in turn: each has the width that those before it
    leave.
    """

    def breadth(self, depth: int, width: int) -> list[int]:
        """The first drafter's breadth: the nodes that the others add are seldom accepted."""
        return self.parts[0].levels(depth, width)

    def levels(self, depth: int, width: int) -> list[int]:
        return added(
            part.levels(depth, left)
            for part, left in zip(self.parts, self._left(depth, width), strict=True)
        )

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        return sum(
            part.seconds(costs, lengths, min(depth, part.max_depth), left)
            for part, left in zip(self.parts, self._left(depth, width), strict=True)
        )

    def _left(self, depth: int, width: int) -> list[int]:
        """The width that is left to each drafter."""
        left = []
        for part in self.parts:
            left.append(width)
            width = max(width - max(part.levels(depth, width), default=0), 0)
        return left


def added(parts: Iterable[list[int]]) -> list[int]:
    """The sums of lists of nodes, level by level."""
    return [sum(level) for level in zip_longest(*parts, fillvalue=0)]


def spread(total: int, depth: int, width: int) -> list[int]:
    """`total` nodes on `depth` levels, more on the first ones, at most `width` on each."""
    return [min(width, total // depth + (i < total % depth)) for i in range(depth)]
