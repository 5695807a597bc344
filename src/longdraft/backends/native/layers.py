"""Which layers the native kernels compute, by their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from longdraft.backends.decoder_layer import (
    LLAMA_LIKE,
    Attention,
    Decoder,
    DecoderLayer,
    DeltaNet,
    Norm,
    unread,
)
from longdraft.backends.describe import described
from longdraft.families import family_of

# The fields that NativeStep and HybridStep read. A model with anything in another field is refused.
READ: Mapping[type, frozenset[str]] = {
    **LLAMA_LIKE,
    Attention: LLAMA_LIKE[Attention] | {"gated", "window"},
    Norm: LLAMA_LIKE[Norm] | {"plus_one"},
    DeltaNet: frozenset(field.name for field in fields(DeltaNet)),
}


def computes(hf: Any, windows: Mapping[int, object]) -> bool:
    """Whether these kernels compute the layers of a model; windows: as in its config."""
    family = family_of(hf)
    decoder = described(hf)
    if family is None or decoder is None:
        return False
    seen = {i: attention_window(layer) for i, layer in enumerate(decoder.layers)}
    step = "hybrid" if decoder.delta_nets else "decoder"
    return (
        not unread(decoder, READ)
        and all(knows(layer) for layer in decoder.layers)
        and family.native == step
        and is_uniform(decoder)
        and {i: window for i, window in seen.items() if window is not None} == windows
    )


def knows(layer: DecoderLayer) -> bool:
    """Whether the kernels know the functions of a layer, whose fields they read."""
    if layer.mlp.activation != "silu":
        return False
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return True
    plain = type(mixer.b.module) is type(mixer.a.module) is nn.Linear
    values = mixer.value_heads * mixer.value_dim
    return (
        plain
        and mixer.b.module.bias is None
        and mixer.a.module.bias is None
        and mixer.activation == "silu"
        and mixer.value_dim % 16 == values % 16 == 0
    )


def is_uniform(decoder: Decoder) -> bool:
    """Whether what the kernels are told once for all layers is the same in each, and that some
    layer attends.
    """
    heads = {(a.heads, a.key_heads, a.dim, a.scale, a.gated) for a in decoder.attentions}
    rotated_alike = all(a.rotation is decoder.rotation for a in decoder.attentions)
    return len(heads) == 1 and rotated_alike and len({norm.eps for norm in decoder.norms}) == 1


def attention_window(layer: DecoderLayer) -> int | None:
    return layer.mixer.window if isinstance(layer.mixer, Attention) else None
