"""What attention over keys of 8 bits computes, in a few lines of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longdraft import ops
from longdraft.ops.coded import hadamard

BLOCK = 32  # numbers of a query that share a scale
GROUP = 32  # slots whose weights are rounded together


def in_blocks(x: Tensor, size: int) -> Tensor:
    """[...,n] -> [...,blocks,size], filled up with zeros."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
    return filled.unflatten(-1, (-1, size))


def rounded_queries(q: Tensor) -> Tensor:
    blocks = in_blocks(q, BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / scale).round() * scale).flatten(-2)[..., : q.shape[-1]]


def rounded_weights(weights: Tensor) -> Tensor:
    """weights [...,S], times the scales of the values."""
    groups = in_blocks(weights, GROUP)
    step = groups.amax(-1, keepdim=True).clamp(min=1e-30) / 255
    return ((groups / step).round() * step).flatten(-2)[..., : weights.shape[-1]]


class Reference:
    """ops.attend over keys of 8 bits, as integer_attention.h specifies it.

    Keys are given whole; what all have in common makes no difference to what the rows return.
    """

    queries: Callable[[Tensor], Tensor] = staticmethod(rounded_queries)
    weights: Callable[[Tensor], Tensor] = staticmethod(rounded_weights)

    def __call__(self, q, segments, scale, softcap=None, sink=None, keep=None) -> ops.Attended:
        [segment] = segments
        heads = len(q)
        k, v = (x.repeat_interleave(heads // len(x), 0) for x in (segment.k, segment.v))
        logits = self.queries(hadamard(q * scale)) @ hadamard(k).mT
        if segment.visible is not None:
            count = segment.visible.shape[1]
            logits[..., -count:].masked_fill_(~segment.visible, float("-inf"))
        weights = (logits - logits.amax(-1, keepdim=True)).exp()
        steps = v.abs().amax(-1, keepdim=True) / 127  # a value has one scale
        codes = v / steps.clamp(min=1e-30)
        total = weights.sum(-1, keepdim=True)
        if sink is not None:
            total = total + (sink[:, None, None] - logits.amax(-1, keepdim=True)).exp()
        out = self.weights(weights * steps.mT) @ codes / total
        kept = None if keep is None else logits[:, keep]
        return ops.Attended(out.transpose(0, 1), kept)
