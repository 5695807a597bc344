"""Tensors in, tensors out. `attend` is the implementation for this machine; `reference` is the specification."""

from __future__ import annotations

import os

from longdraft.ops import cpu
from longdraft.ops.noise import ACCEPT, DRAFT, RESIDUAL, gumbel, uniform
from longdraft.ops.reference import Attended, Segment
from longdraft.ops.select import choose, take

if os.environ.get("LONGDRAFT_TRITON") == "1":  # by wish, until a GPU has run them
    from longdraft.ops import gpu

    def attend(q, *args, **options) -> Attended:
        """See reference.attend; Triton's kernels where the tensors lie on a GPU."""
        return (gpu.attend if q.is_cuda else cpu.attend)(q, *args, **options)
else:
    attend = cpu.attend

__all__ = ["ACCEPT", "DRAFT", "RESIDUAL", "Attended", "Segment", "attend", "choose", "gumbel", "take", "uniform"]
