"""The part of Transformers' cache protocol that modules call while they compute a pass over a KVCache."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Past:
    """Belongs to one pass. What modules put into it is of the new nodes alone; what is cached stays in the KVCache.

    Transformers builds no mask from it: for attention functions that it has no masks for, it asks for no sizes.
    states {layer: the two tensors of the last `update`}.
    """

    def __init__(self) -> None:
        self.states: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, k: Tensor, v: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Remember k, v [B,K,W,D] of the new nodes -> what the module computes with, k and v unchanged."""
        self.states[layer_idx] = k, v
        return k, v


def needs_past(hf: Any) -> bool:
    """Whether modules keep other states than the keys and values that they give to the attention function."""
    return any(hasattr(module, "expand_kv") for module in hf.modules())
