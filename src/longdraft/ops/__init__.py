"""Tensors in, tensors out. `attend` is the implementation for this machine; `reference` is the specification."""

from __future__ import annotations

from longdraft.ops import cpu, noise
from longdraft.ops.noise import ACCEPT, DRAFT, RESIDUAL, draw, row_seed, uniform
from longdraft.ops.reference import Attended, Segment
from longdraft.ops.select import Compact, choose, refill, take
from longdraft.ops.triton import self_check as trial


def attend(q, *args, **options) -> Attended:
    """See reference.attend; Triton's kernels where the tensors lie on a GPU."""
    gpu = trial.kernels() if q.is_cuda else None
    return (gpu or cpu).attend(q, *args, **options)


def gumbel(seed, position, vocab):
    """See noise.gumbel."""
    gpu = trial.kernels() if position.is_cuda else None
    return (gpu or noise).gumbel(seed, position, vocab)


__all__ = [
    "ACCEPT",
    "DRAFT",
    "RESIDUAL",
    "Attended",
    "Compact",
    "Segment",
    "attend",
    "choose",
    "draw",
    "gumbel",
    "refill",
    "row_seed",
    "take",
    "uniform",
]
