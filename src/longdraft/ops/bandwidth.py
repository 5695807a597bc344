"""Measures this machine's memory bandwidth, which limits decoding of long contexts."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import torch

from longdraft.ops import native


@cache
def bandwidth(device: torch.device | str = "cpu", size: int = 1 << 28, tries: int = 7) -> float:
    """GB/s at which this machine reads the `size` bytes of a decoding step.

    The best try, kept per size.
    """
    buffer = torch.ones(max(size >> 2, 1 << 20), dtype=torch.float32, device=device)
    lib = native.library()
    times = []
    for _ in range(tries):
        begin = perf_counter()
        if buffer.is_cpu and lib is not None:
            lib.longdraft_read(buffer.data_ptr(), buffer.numel() // 16)
        else:
            buffer.sum().item()
        times.append(perf_counter() - begin)
    return buffer.numel() * 4 / min(times) / 1e9
