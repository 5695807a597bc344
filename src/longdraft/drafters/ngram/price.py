"""Prices of drafts that are copied from text: no pass makes them, but Python handles each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longdraft.costs.passes import PassCosts
from longdraft.drafters.price import DraftPrice, Lengths, spread

USUAL_WIDTH = 2  # nodes of a depth: SuffixDecoding's trees are mostly chains


@dataclass(frozen=True, kw_only=True)
class CopyPrice(DraftPrice):
    """The price of a chain that is copied."""

    usual: tuple[float, float] = (0.5, 0.2)
    finds: float = 0.5

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        return costs.tree * lengths.rows * self.nodes(depth, width)


@dataclass(frozen=True, kw_only=True)
class SuffixPrice(CopyPrice):
    """most: nodes of a tree."""

    most: int

    def levels(self, depth: int, width: int) -> list[int]:
        depth = min(depth, self.max_depth)
        width = min(width, USUAL_WIDTH)
        return spread(min(self.most, depth * width), depth, width)


@dataclass(frozen=True, kw_only=True)
class TemplatePrice(CopyPrice):
    """sizes: nodes of each level of a fixed tree."""

    sizes: Sequence[int]
    usual: tuple[float, float] = (0.45, 0.3)
    finds: float = 1.0

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(n, width) for n in self.sizes[:depth]]


@dataclass(frozen=True, kw_only=True)
class ReusePrice(CopyPrice):
    """Branches of one node at depth `below`, which seldom share a node.

    topk: branches. length: tokens of each.
    """

    below: int
    topk: int
    length: int
    usual: tuple[float, float] = (0.4, 0.3)

    def levels(self, depth: int, width: int) -> list[int]:
        deep = max(min(self.length, depth - self.below), 0)
        return [0] * min(self.below, depth) + [min(self.topk, width)] * deep
