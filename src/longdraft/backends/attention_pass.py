"""The protocol of what longdraft's attention function calls in place of a Transformers attention function."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AttentionPass(Protocol):
    """One forward pass. calls counts the layers that have called `attend`."""

    calls: int

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, sink: Tensor | None, /
    ) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the new nodes -> [B,W,H,Dv]."""
        ...
