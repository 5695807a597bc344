"""Tensors in, tensors out. `attend` is the implementation for this machine; `reference` is the specification."""

from __future__ import annotations

import os

from longdraft.ops import cpu, noise
from longdraft.ops.noise import ACCEPT, DRAFT, RESIDUAL, draw, uniform
from longdraft.ops.reference import Attended, Segment
from longdraft.ops.select import Compact, choose, take

if os.environ.get("LONGDRAFT_TRITON") == "1":  # by wish, until a GPU has run them
    from longdraft.ops import gpu

    def attend(q, *args, **options) -> Attended:
        """See reference.attend; Triton's kernels where the tensors lie on a GPU."""
        return (gpu.attend if q.is_cuda else cpu.attend)(q, *args, **options)

    def gumbel(seed, position, vocab):
        """See noise.gumbel."""
        return (gpu.gumbel if position.is_cuda else noise.gumbel)(seed, position, vocab)
else:
    attend, gumbel = cpu.attend, noise.gumbel

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
    "take",
    "uniform",
]
