"""From scores to a compact copy of the best keys; native where there are kernels and the tensors lie on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.ops import native


def lend(scores: Tensor, reach: int, share: float) -> Tensor:
    """scores [...,S] -> [...,S]: each place also gets `share` of every one of the `reach` scores before it."""
    if not reach:
        return scores
    lent = torch.zeros_like(scores)
    for back in range(1, min(reach, scores.shape[-1] - 1) + 1):
        lent[..., back:] += scores[..., :-back]
    return scores + share * lent


def choose(scores: Tensor, count: int, reach: int = 0, share: float = 0.0) -> Tensor:
    """scores [L,S] float32, finite -> [L,count] places of the best after `lend`, ascending; of equals the earlier."""
    lib = native.library()
    if lib is None or not scores.is_cpu or not count:
        best = lend(scores, reach, share).sort(stable=True, dim=-1, descending=True).indices[..., :count]
        return best.sort(-1).values
    scores = scores if scores.stride(-1) == 1 else scores.contiguous()
    picks = torch.empty(len(scores), count, dtype=torch.long)
    lib.longdraft_choose(
        scores.data_ptr(), len(scores), scores.stride(0), scores.shape[1], reach, share, count, picks.data_ptr()
    )
    return picks


def take(x: Tensor, slots: Tensor) -> Tensor:
    """x [K,S,D] at slots [P], or [K|1,P] of each head -> [K,P,D]."""
    lib = native.library()
    slots = (slots if slots.dim() == 1 else slots.expand(len(x), -1)).contiguous()
    if lib is None or not x.is_cpu or x.stride()[1:] != (x.shape[2], 1):
        if slots.dim() == 1:
            return x.index_select(1, slots)
        return x.gather(1, slots[..., None].expand(len(x), -1, x.shape[-1]))
    out = x.new_empty(len(x), slots.shape[-1], x.shape[-1])
    size = x.element_size()
    lib.longdraft_take(
        x.data_ptr(), len(x), x.stride(0) * size, x.shape[-1] * size,
        slots.data_ptr(), slots.shape[-1], slots.dim() - 1, out.data_ptr(),
    )  # fmt: skip
    return out
