"""Layers that attend to the keys and values of an earlier layer and have none of their own (Gemma
3n, Gemma 4).
"""

from __future__ import annotations

from typing import Any


def sources_of(hf: Any) -> dict[int, int]:
    """{layer: the layer whose keys it reads} of the layers without their own keys.

    Transformers marks them (`is_kv_shared_layer`); they read those of the last layer of their type
    that has its own.
    """
    attentions = [m for m in hf.get_decoder().modules() if hasattr(m, "is_kv_shared_layer")]
    sharing = {m.layer_idx for m in attentions if m.is_kv_shared_layer}
    if not sharing:
        return {}
    types: list[str] = hf.config.get_text_config().layer_types
    own = [layer for layer in range(len(types)) if layer not in sharing]
    return {
        layer: max(n for n in own if n < layer and types[n] == types[layer])
        for layer in sorted(sharing)
    }
