"""The price of the drafts of multi-token-prediction layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longdraft.costs.passes import PassCosts
from longdraft.drafters.block_costs import Read, block_seconds
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine
from longdraft.models.memory_traffic import Weights


@dataclass(frozen=True, kw_only=True)
class MtpPrice(DraftPrice):
    """A call of a layer for each level, the first one's made by `update`; without their keys, which
    are few: a window of them in one layer.

    weights: of a layer. head: bytes of the target's output matrix. one_layer: whether the same
    layer makes all levels, so that native kernels draft a chain in one call.
    """

    weights: Weights
    head: float
    itemsize: int
    vocab: int
    widths: Sequence[int]
    one_layer: bool
    compiled: bool
    usual: tuple[float, float] = (0.7, 0.6)
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        return [min(w, width) for w in self.widths[:depth]]

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        rows = lengths.rows
        seconds = costs.tree * self.nodes(depth, width)
        widths = [1, *(min(w, width) for w in self.widths[: depth - 1])]
        inside = self.compiled and self.one_layer and set(widths) == {1}  # a chain is one call
        for i, w in enumerate(widths):
            read = Read(self.weights.read(rows * w), self.head, self.itemsize)
            drawn = float(rows * w * self.vocab)
            calls = 0 if inside and i else 1
            seconds += block_seconds(costs, rows, w, read, 0, drawn, self.compiled, calls)
        return seconds

    def planned(self, machine: PlannedMachine) -> MtpPrice:
        return replace(self, compiled=machine.compiled)
