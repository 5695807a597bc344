"""Prices of the drafts of heads: all of them run at once, whatever the depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longdraft.costs.passes import PassCosts
from longdraft.drafters.block_costs import Read, block_seconds
from longdraft.drafters.price import DraftPrice, Lengths, spread
from longdraft.drafters.view_price import ViewPrice


@dataclass(frozen=True, kw_only=True)
class HeadsPrice(ViewPrice):
    """One pass of the target under the view, then all heads. heads: how many. sizes: nodes of each
    level.
    """

    read: Read
    heads: int
    vocab: int
    sizes: Sequence[int]
    usual: tuple[float, float] = (0.5, 0.4)
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(n, width) for n in self.sizes[:depth]]

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        first = self.pass_seconds(costs, lengths, 1)
        drawn = float(lengths.rows * self.heads * self.vocab)
        heads = block_seconds(costs, lengths.rows, 1, self.read, drawn=drawn)
        return first + heads + costs.tree * self.nodes(depth, width)


@dataclass(frozen=True, kw_only=True)
class MedusaPrice(DraftPrice):
    """heads: how many. sizes: nodes of each level of a fixed tree; paths: nodes of a tree of the
    likeliest paths, 0 for a fixed one.
    """

    read: Read
    heads: int
    vocab: int
    sizes: Sequence[int] = ()
    paths: int = 0
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        if not self.paths:
            return [min(n, width) for n in self.sizes[:depth]]
        depth = min(depth, self.max_depth)
        return spread(min(self.paths, depth * width), depth, width)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        drawn = float(lengths.rows * self.heads * self.vocab)
        heads = block_seconds(costs, lengths.rows, 1, self.read, drawn=drawn)
        return heads + costs.tree * self.nodes(depth, width)
