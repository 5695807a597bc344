"""The keys of the latest features of a text: memory of fixed size, whatever the length of the context."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import without
from longdraft.drafters.dflash.block import DFlashBlock


class FeatureRing:
    """Slot p % size holds every layer's key and value of position p, for positions [low, end) of each row that are
    among the latest `size`; k, v [layers,B,K,size+slots,D], where a block's own slots have room after the ring.

    They are written in order, so what is missing is always a range of positions from `end` on. After a rewind, the
    positions whose slots had been overwritten are given up.
    """

    def __init__(self, block: DFlashBlock, size: int, end: Tensor):
        """end [B]: the first position that each row will hold."""
        s, self.size = block.shape, size
        shape = (len(block.layers), len(end), s["num_key_value_heads"], size + block.slots, s["head_dim"])
        self.k, self.v = (torch.zeros(shape, dtype=block.dtype, device=end.device) for _ in range(2))
        self.low, self.end = end.clone(), end.clone()

    def resized(self, block: DFlashBlock, size: int) -> FeatureRing:
        """The same latest features in a ring of another size."""
        new, held = FeatureRing(block, size, self.end), min(size, self.size)
        new.low = torch.maximum(self.low, self.end - held)
        for b, (low, end) in enumerate(zip(new.low.tolist(), new.end.tolist(), strict=True)):
            position = torch.arange(low, end, device=self.end.device)
            for ring, old in ((new.k, self.k), (new.v, self.v)):
                ring[:, b, :, position % size] = old[:, b, :, position % self.size]
        return new

    def enter(self, end: int) -> None:
        """Add an empty row."""
        self.k, self.v = (torch.cat([x, x.new_zeros(len(x), 1, *x.shape[2:])], 1) for x in (self.k, self.v))
        self.low, self.end = (torch.cat([x, x.new_full((1,), end)]) for x in (self.low, self.end))

    def leave(self, row: int) -> None:
        self.k, self.v = (without(x.transpose(0, 1), row).transpose(0, 1).contiguous() for x in (self.k, self.v))
        self.low, self.end = without(self.low, row), without(self.end, row)

    def restart(self, row: int, end: int) -> None:
        """Empty a row that will next hold position `end`."""
        self.low[row] = self.end[row] = end

    def rewind(self, length: Tensor) -> None:
        """Forget the positions from length [B] on."""
        overwritten = (self.end - self.size).where(self.end > length, 0)
        self.low = torch.maximum(self.low, overwritten)
        self.end = torch.minimum(self.end, length)
        self.low = torch.minimum(self.low, self.end)

    def append_scratch(self, nodes: int, count: Tensor) -> None:
        """The first count [B] of the `nodes` positions whose keys lie behind the ring."""
        k, v = (x[:, :, :, self.size : self.size + nodes].transpose(0, 1) for x in (self.k, self.v))
        self.append(torch.arange(len(count), device=count.device), k, v, count)

    def append(self, rows: Tensor, k: Tensor, v: Tensor, count: Tensor) -> None:
        """k, v [R,layers,K,N,D] of the positions from `end` on of these rows, of which count [R] are real."""
        steps = torch.arange(k.shape[3], device=k.device)
        real = (steps < count[:, None]) & (steps >= count[:, None] - self.size)
        which, offset = real.nonzero(as_tuple=True)
        slots = (self.end[rows][which] + offset) % self.size
        for ring, new in ((self.k, k), (self.v, v)):
            ring[:, rows[which], :, slots] = new[which, :, :, offset]
        self.end[rows] += count

    def places(self) -> list[tuple[int, int, int]]:
        """For each layer the addresses of the first row's keys and values, and the slots of a row."""
        return [(k.data_ptr(), v.data_ptr(), k.shape[2]) for k, v in zip(self.k, self.v, strict=True)]

    def visible(self, slots: int, window: int) -> Tensor:
        """[B,slots,size]: what the slots of a block whose root is at `end` attend to, `window` positions back."""
        newest, ring = self.end[:, None] - 1, torch.arange(self.size, device=self.end.device)
        position = newest - (newest - ring) % self.size
        query = self.end[:, None] + torch.arange(slots, device=self.end.device)
        held = position >= self.low[:, None]
        return held[:, None] & (position[:, None] > query[..., None] - window)
