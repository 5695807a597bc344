"""Layers whose MLP selects some of its experts for each node."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from longdraft.backends.features.feature import Feature

# In configs: how many there are, and how many of them a node goes through.
NAMES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PER_NODE = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k")


def number_of(config: Any, names: Collection[str]) -> int:
    """The number that a config has by one of these names; 0: it has none."""
    holders = (config, getattr(config, "ffn_config", None))  # the latter is DBRX's
    found = (getattr(holder, name, None) for holder in holders for name in names)
    return next((n for n in found if n and isinstance(n, int)), 0)


class Experts(Feature):
    """count: how many a layer selects from."""

    models = "Mixtral, Qwen 3, gpt-oss, GLM-4.5"
    computed = "Transformers' modules; the native kernels read each expert once for all its nodes"

    def __init__(self, count: int):
        self.count = count

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        count = number_of(hf.config.get_text_config(), NAMES)
        return cls(count) if count else None
