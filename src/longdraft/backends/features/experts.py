"""Layers whose MLP selects some of its experts for each node."""

from __future__ import annotations

from typing import Any, Self

from longdraft.backends.features.feature import Feature

NAMES = ("num_experts", "num_local_experts", "n_routed_experts")  # of their number in configs


class Experts(Feature):
    """count: how many a layer selects from."""

    models = "Mixtral, Qwen 3, gpt-oss, GLM-4.5"
    computed = "Transformers' modules; the native kernels read each expert once for all its nodes"

    def __init__(self, count: int):
        self.count = count

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        config = hf.config.get_text_config()
        counts = (getattr(config, name, None) for name in NAMES)
        count = next(filter(None, counts), 0)
        return cls(count) if count else None
