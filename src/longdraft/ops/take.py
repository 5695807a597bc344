"""Copies slots side by side. By a native kernel where there is one, on a CPU."""

from __future__ import annotations

from torch import Tensor

from longdraft.ops import native


def take(x: Tensor, slots: Tensor) -> Tensor:
    """x [K,S,D] at slots [P], or [K|1,P] for each head -> [K,P,D]."""
    lib = native.library()
    slots = (slots if slots.dim() == 1 else slots.expand(len(x), -1)).contiguous()
    if lib is None or not x.is_cpu or x.stride()[1:] != (x.shape[2], 1):
        if slots.dim() == 1:
            return x.index_select(1, slots)
        return x.gather(1, slots[..., None].expand(len(x), -1, x.shape[-1]))
    out = x.new_empty(len(x), slots.shape[-1], x.shape[-1])
    size = x.element_size()
    lib.longdraft_take(
        x.data_ptr(), len(x), x.shape[1], x.stride(0) * size, x.shape[-1] * size,
        slots.data_ptr(), slots.shape[-1], slots.dim() - 1, out.data_ptr(),
    )  # fmt: skip
    return out
