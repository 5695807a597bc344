"""Tiny models whose layers share keys, differ in heads, attend twice or have biases of keys."""

from __future__ import annotations

from functools import cache
from typing import Any

import tiny_models
import torch
from transformers import CONFIG_MAPPING

ALTERNATING = ["sliding_attention", "full_attention"]
GEMMA4 = {
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 6,
    "layer_types": 3 * ALTERNATING,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {  # model_type, and changed fields
    # the layout of E2B and E4B: layers 4 and 5 read the keys of layers 2 and 3
    "shared": ("gemma4_text", GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "shared-by-many": ("gemma4_text", GEMMA4 | {"num_kv_shared_layers": 4}),
    # the layout of 26B and 31B: other key heads in layers with full attention, whose keys and
    # values share weights
    "global-heads": (
        "gemma4_text",
        GEMMA4
        | {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "gemma3n": ("gemma3n_text", {}),
    "differential": ("diffllama", {"num_key_value_heads": 4, "num_attention_heads": 8}),
    "biases": ("doge", {"attention_bias": True}),
}


def config(name: str) -> Any:
    kind, changes = CONFIGS[name]
    fields = tiny_models.config(kind).to_dict()
    if "layer_types" in changes:
        del fields["per_layer_config"]  # the class makes it
    return CONFIG_MAPPING[kind].from_dict(fields | changes)


@cache
@torch.inference_mode(False)
def stock(name: str) -> Any:
    """A random Transformers model, shared by tests: none may change its weights."""
    return tiny_models.build(config(name))
