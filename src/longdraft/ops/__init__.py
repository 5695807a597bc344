"""Tensors in, tensors out. `attend` is the implementation for this machine; `reference` is the specification."""

from __future__ import annotations

from longdraft.ops.cpu import attend
from longdraft.ops.noise import ACCEPT, DRAFT, RESIDUAL, gumbel, uniform
from longdraft.ops.reference import Attended, Segment
from longdraft.ops.select import choose, take

__all__ = ["ACCEPT", "DRAFT", "RESIDUAL", "Attended", "Segment", "attend", "choose", "gumbel", "take", "uniform"]
