"""The keys of the latest features of a text: memory of fixed size, whatever the length of the
context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import without
from longdraft.drafters.dflash.block import DFlashBlock


class FeatureRing:
    """Slot p % size holds every layer's key and value of position p, if held [B,size] says so, and
    no row holds a position from its `end` [B] on; k, v [layers,B,K,size+slots,D], where a block's
    own slots have room after the ring.

    A slot without a position holds -1. Positions are written in order, from `end` on; what is left
    out by setting `end` stays missing, as do, after a rewind, the positions whose slots had been
    overwritten.
    """

    def __init__(self, block: DFlashBlock, size: int, end: Tensor):
        """end [B]: the first position that each row will hold."""
        s = block.shape
        self.size = size
        shape = (
            len(block.layers),
            len(end),
            s["num_key_value_heads"],
            size + block.slots,
            s["head_dim"],
        )
        self.k, self.v = (
            torch.zeros(shape, dtype=block.dtype, device=end.device) for _ in range(2)
        )
        self.end = end.clone()
        self.held = self.end.new_full((len(end), size), -1)

    def resized(self, block: DFlashBlock, size: int) -> FeatureRing:
        """The same latest features in a ring of another size."""
        new = FeatureRing(block, size, self.end)
        for b, (held, end) in enumerate(zip(self.held, self.end.tolist(), strict=True)):
            position = held[(held >= 0) & (held >= end - size)]
            new.held[b, position % size] = position
            for ring, old in ((new.k, self.k), (new.v, self.v)):
                ring[:, b, :, position % size] = old[:, b, :, position % self.size]
        return new

    def enter(self, end: int) -> None:
        """Add an empty row."""
        self.k, self.v = (
            torch.cat([x, x.new_zeros(len(x), 1, *x.shape[2:])], 1) for x in (self.k, self.v)
        )
        self.end = torch.cat([self.end, self.end.new_full((1,), end)])
        self.held = torch.cat([self.held, self.held.new_full((1, self.size), -1)])

    def leave(self, row: int) -> None:
        self.k, self.v = (
            without(x.transpose(0, 1), row).transpose(0, 1).contiguous() for x in (self.k, self.v)
        )
        self.held = without(self.held, row)
        self.end = without(self.end, row)

    def rewind(self, length: Tensor) -> None:
        """Forget the positions from length [B] on."""
        self.held = self.held.where(self.held < length[:, None], -1)
        self.end = torch.minimum(self.end, length)

    def append_scratch(self, nodes: int, count: Tensor) -> None:
        """The first count [B] of the `nodes` positions whose keys lie behind the ring."""
        k, v = (x[:, :, :, self.size : self.size + nodes].transpose(0, 1) for x in (self.k, self.v))
        self.append(torch.arange(len(count), device=count.device), k, v, count)

    def append(self, rows: Tensor, k: Tensor, v: Tensor, count: Tensor) -> None:
        """k, v [R,layers,K,N,D] of the positions from `end` on of these rows, of which count [R]
        are real.
        """
        steps = torch.arange(k.shape[3], device=k.device)
        real = (steps < count[:, None]) & (steps >= count[:, None] - self.size)
        which, offset = real.nonzero(as_tuple=True)
        position = self.end[rows][which] + offset
        slots = position % self.size
        self.held[rows[which], slots] = position
        for ring, new in ((self.k, k), (self.v, v)):
            ring[:, rows[which], :, slots] = new[which, :, :, offset]
        self.end[rows] += count

    def places(self) -> list[tuple[int, int, int]]:
        """For each layer the addresses of the first row's keys and values, and the slots of a
        row.
        """
        return [
            (k.data_ptr(), v.data_ptr(), k.shape[2]) for k, v in zip(self.k, self.v, strict=True)
        ]

    def visible(self, slots: int, window: int) -> Tensor:
        """[B,slots,size]: what the slots of a block whose root is at `end` attend to, `window`
        positions back.
        """
        query = self.end[:, None] + torch.arange(slots, device=self.end.device)
        position = self.held[:, None]
        return (position >= 0) & (position > query[..., None] - window)


def feature_bytes(block: DFlashBlock) -> int:
    """Bytes of the keys and values of one position, in all layers of the block."""
    heads, dim = block.shape["num_key_value_heads"], block.shape["head_dim"]
    return 2 * len(block.layers) * heads * dim * block.dtype.itemsize
