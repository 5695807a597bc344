"""The price of DFlash's drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longdraft.costs.passes import PassCosts
from longdraft.drafters.block_costs import Read, block_seconds
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine, spread


@dataclass(frozen=True, kw_only=True)
class DFlashPrice(DraftPrice):
    """One pass of the block over all its slots, whatever the depth.

    slots: of the block. slot: bytes of a feature's keys and values in all its layers. window:
    features that are seen. known: tokens that can be drafted. most_nodes, most_width: of a tree.
    """

    read: Read
    slots: int
    slot: int
    window: int
    known: int
    most_nodes: int
    most_width: int
    compiled: bool
    rough: bool = True

    def levels(self, depth: int, width: int) -> list[int]:
        depth = min(depth, self.max_depth)
        width = min(width, self.most_width)
        return spread(min(self.most_nodes, depth * width), depth, width)

    def seconds(self, costs: PassCosts, lengths: Lengths, depth: int, width: int) -> float:
        seen = sum(min(n, self.window) + self.slots for n in lengths.slots)
        drawn = float(lengths.rows * self.slots * self.known)
        call = block_seconds(
            costs,
            lengths.rows,
            self.slots,
            self.read,
            float(self.slot * seen),
            drawn,
            self.compiled,
        )
        return call + costs.tree * self.nodes(depth, width)

    def planned(self, machine: PlannedMachine) -> DFlashPrice:
        return replace(self, compiled=machine.compiled)
