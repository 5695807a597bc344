"""The protocol of what longdraft's attention function calls in place of a Transformers attention
function.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AttentionPass(Protocol):
    """One forward pass. calls counts the calls of `attend`, most often one for each layer."""

    calls: int

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
        /,
    ) -> Tensor:
        """q [B,H,T,D] of the last T new nodes, k, v [B,K,W,D] of all -> [B,T,H,Dv].

        Most models have queries of all W nodes.
        """
        ...
