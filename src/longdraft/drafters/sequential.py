"""Drafters that add to a tree in turn."""

from __future__ import annotations

from longdraft.core import CaptureSpec, DraftLimits, Sequences, Tree
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined
from longdraft.drafters.price import InTurnPrice


class Sequential(Combined[Drafter]):
    """Drafters applied in order to one tree. At most one of them may use captures."""

    def __init__(self, *drafters: Drafter):
        self.combine(drafters)
        self.max_depth = max(d.max_depth for d in drafters)
        # by drafter, the number of nodes of the tree once it has added its own
        self._ends: list[int] = []
        self.captures()

    def proposed_by(self, node: int) -> str:
        return next(
            (
                d.proposed_by(node)
                for d, end in zip(self.drafters, self._ends, strict=True)
                if node < end
            ),
            "",
        )

    def captures(self) -> CaptureSpec:
        specs = [spec for spec in (d.captures() for d in self.drafters) if spec.rows or spec.hidden]
        if len(specs) > 1:
            raise ValueError(
                "at most one drafter of a Sequential may use captures of the verify pass"
            )
        return specs[0] if specs else CaptureSpec()

    def price(self) -> InTurnPrice:
        return InTurnPrice.of([d.price() for d in self.drafters], self.max_depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self._ends = []
        for d in self.drafters:
            tree = d.grow(tree, seqs, limits.within(width=max(limits.width - tree.widest, 0)))
            self._ends.append(tree.size)
        return tree
