"""The price of EAGLE's drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longdraft.costs.passes import PassCosts
from longdraft.drafters.block_costs import Read, block_seconds
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine, spread

ACCEPTED = 2  # tokens of a step of each row, usually


@dataclass(frozen=True, kw_only=True)
class EaglePrice(DraftPrice):
    """The layer on the pairs of the tokens that were accepted, usually two, which `update` runs;
    the output matrix on the last one's output; then both for each level but the last, natively in
    one call.

    layer: the block's weights without its output matrix. head: this matrix. both: together. slot:
    bytes of a pair's key and value. reach, most: as in Span. known: tokens that can be drafted.
    topk, most_nodes: of a tree. compiled: whether native kernels compute the block.
    """

    layer: Read
    head: Read
    both: Read
    slot: int
    reach: int
    most: int
    known: int
    topk: int
    most_nodes: int
    compiled: bool
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        depth = min(depth, self.max_depth)
        if width < self.topk:
            candidates = depth * width
        else:
            candidates = self.topk + (depth - 1) * self.topk**2 if depth else 0
        return spread(min(candidates, self.most_nodes - 1), depth, candidates)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        topk = min(self.topk, width)
        rows = lengths.rows
        drawn = float(rows * self.known)
        native = self.compiled
        keys = self._keys(lengths)
        calls = 0 if native else 1
        fed = block_seconds(costs, rows, ACCEPTED, self.layer, keys, compiled=native)
        first = block_seconds(costs, rows, 1, self.head, 0, drawn, native)
        level = block_seconds(costs, rows, topk, self.both, keys, topk * drawn, native, calls)
        return fed + first + (depth - 1) * level + costs.tree * self.nodes(depth, width)

    def planned(self, machine: PlannedMachine) -> EaglePrice:
        return replace(self, compiled=machine.compiled)

    def _keys(self, lengths: Lengths) -> float:
        """Bytes of the keys and values of the pairs that the layer sees."""
        seen = (n if n <= self.reach else self.most for n in lengths.slots)
        return float(self.slot * sum(seen))
