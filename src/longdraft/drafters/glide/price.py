"""The price of the drafts of LongSpec's block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longdraft.costs.passes import PassCosts
from longdraft.drafters.block_costs import Read, block_seconds
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine, spread
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import Seen
from longdraft.ops import coded


@dataclass(frozen=True, kw_only=True)
class GlidePrice(DraftPrice):
    """A call of the block for the root, then one for each level but the last; without the keys of
    its own window, which are few.

    slot: bytes of a key and value of the target's layer that it attends to, and seen: how many of
    these it reads. known: tokens that can be drafted. paths: nodes of a tree of the likeliest paths
    of a chain; 0: a tree of `widths`.
    """

    read: Read
    slot: int
    seen: Seen
    known: int
    widths: Sequence[int]
    paths: int
    compiled: bool
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        if not self.paths:
            return [min(w, width) for w in self.widths[:depth]]
        depth = min(depth, self.max_depth)
        return spread(min(self.paths, depth * width), depth, width)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        rows = lengths.rows
        keys = self.slot * sum(self.seen(lengths.slots))
        widths = [1, *(1 if self.paths else min(w, width) for w in self.widths[: depth - 1])]
        inside = self.compiled and set(widths) == {1}  # a chain is one call
        levels = 0.0
        for i, w in enumerate(widths):
            drawn = float(rows * w * self.known)
            calls = 0 if inside and i else 1
            levels += block_seconds(costs, rows, w, self.read, keys, drawn, self.compiled, calls)
        return levels + costs.tree * self.nodes(depth, width)

    def planned(self, machine: PlannedMachine) -> GlidePrice:
        return replace(self, compiled=machine.compiled)


def slot_bytes(target: LM, layer: int, heads: int, key: int, value: int) -> int:
    """Bytes of a slot's key and value in a layer of the target that has so many key heads, for all
    layers that read them.
    """
    readers = 1 + list(target.sources.values()).count(layer)
    bits = target.kv_bits
    if bits:
        return readers * heads * (coded.width(key, bits) + coded.width(value, bits))
    return readers * heads * (key + value) * target.dtype.itemsize


def slots_seen(target: LM, layer: int, policy: Seen) -> Seen:
    """How many slots of each row a node reads in a layer of the target: those that the policy
    shows, unless the layer has a window.
    """
    span = target.architecture.spans.get(layer)
    if span is None:
        return policy
    return lambda lengths: [n - max(0, span.low(n - 1)) for n in lengths]
