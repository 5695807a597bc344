"""Decoder layers of a target's own class, beside those of the target, as native kernels compute
them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from longdraft.backends.decoder_layer import LINEARS, NORMS
from longdraft.backends.stock import SILU, changed, is_stock, known
from longdraft.core.draft_layers import DraftLayer
from longdraft.models.lm import LM


def stock_parts(target: LM, layer: Any, beside: Sequence[nn.Module]) -> dict[str, Any] | None:
    """What DraftLayers says of this decoder layer and its rotation.

    None unless the target's own layers are of the same class, and the kernels know it and the
    modules beside it.
    """
    hf: Any = target.hf
    if not is_stock(hf) or type(layer) is not type(hf.model.layers[0]):
        return None
    own = sys.modules[type(hf).__module__]
    inside = [*layer.modules(), *beside]
    rotary = hf.model.rotary_emb
    eps = hf.config.rms_norm_eps
    attention = layer.self_attn
    plain = all(
        known(m, own) and not changed(m) and getattr(m, "variance_epsilon", eps) == eps
        for m in inside
    )
    if (
        not plain
        or type(layer.mlp.act_fn) not in SILU
        or attention.scaling != attention.head_dim**-0.5
    ):
        return None
    heads, key_heads = (
        p.out_features // attention.head_dim for p in (attention.q_proj, attention.k_proj)
    )
    parts: dict[str, Any] = {part.field: part.of(layer) for part in (*LINEARS, *NORMS)}
    return {
        "layers": [DraftLayer(**parts)],
        "heads": heads,
        "key_heads": key_heads,
        "dim": attention.head_dim,
        "mlp": layer.mlp.gate_proj.out_features,
        "eps": eps,
        "frequency": rotary.inv_freq,
        "scaling": rotary.attention_scaling,
    }
