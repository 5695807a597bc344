"""Operations on tensors, each with a choice between implementations.

reference.py is their specification.
"""

from __future__ import annotations

from types import ModuleType

from longdraft.ops import coded, cpu, noise
from longdraft.ops.noise import ACCEPT, DRAFT, RESIDUAL, Warpers, argmax, draw, row_seed, uniform
from longdraft.ops.reference import Attended, Segment, full_mask
from longdraft.ops.select import Compact, choose, refill
from longdraft.ops.stored import Coding, StoredRow
from longdraft.ops.take import take
from longdraft.ops.triton import self_check

WIDEST = 256  # numbers of a key in Triton's tiles; a latent has more


def attend(q, *args, **options) -> Attended:
    """See reference.attend.

    Runs Triton kernels on a GPU where they pass their self-check, torch elsewhere.
    """
    gpu = self_check.kernels() if q.is_cuda and q.shape[2] <= WIDEST else None
    return (gpu or cpu).attend(q, *args, **options)


def scans(x) -> ModuleType | None:
    """triton.scans where x is on a GPU whose kernels pass their self-check; None: torch scans."""
    return self_check.scans() if x.is_cuda else None


def gumbel(seed, position, vocab, tokens=None):
    """See noise.gumbel."""
    gpu = self_check.kernels() if position.is_cuda else None
    if gpu is None:
        return noise.gumbel(seed, position, vocab, tokens)
    values = gpu.gumbel(seed, position, vocab)
    return values if tokens is None else values[..., tokens]


__all__ = [
    "ACCEPT",
    "DRAFT",
    "RESIDUAL",
    "Attended",
    "Coding",
    "Compact",
    "Segment",
    "StoredRow",
    "Warpers",
    "argmax",
    "attend",
    "choose",
    "coded",
    "draw",
    "full_mask",
    "gumbel",
    "refill",
    "row_seed",
    "scans",
    "take",
    "uniform",
]
