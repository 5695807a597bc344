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
    LinearRows,
    Norm,
    Rotation,
    unread,
)
from longdraft.backends.describe import described
from longdraft.families import family_of
from longdraft.ops import native

# The fields that NativeStep and HybridStep read. A model with anything in another field is refused.
READ: Mapping[type, frozenset[str]] = {
    **LLAMA_LIKE,
    Decoder: LLAMA_LIKE[Decoder] | {"embedding_scale", "logit_divisor", "logit_cap"},
    DecoderLayer: LLAMA_LIKE[DecoderLayer]
    | {"mixer_output_norm", "mlp_output_norm", "residual_scale"},
    Attention: LLAMA_LIKE[Attention] | {"gated", "window", "cap", "joint_norms"},
    LinearRows: frozenset({"weight", "bias"}),
    Rotation: LLAMA_LIKE[Rotation] | {"interleaved"},
    Norm: LLAMA_LIKE[Norm] | {"plus_one"},
    DeltaNet: frozenset(field.name for field in fields(DeltaNet)),
}


# By their names in descriptions.
ACTIVATIONS = {
    "silu": native.Activation.SILU,
    "GELUTanh": native.Activation.GELU_TANH,
    "PytorchGELUTanh": native.Activation.GELU_TANH,
    "ReLUSquaredActivation": native.Activation.RELU2,
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
    if layer.mlp.activation not in ACTIVATIONS:
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
    heads = {
        (a.heads, a.key_heads, a.dim, a.scale, a.gated, a.joint_norms) for a in decoder.attentions
    }
    rotated = {(len(r.frequencies), r.scaling, r.interleaved) for r in rotations(decoder)}
    around = {(layer.mlp.activation, layer.residual_scale) for layer in decoder.layers}
    epsilons = {norm.eps for norm in decoder.norms}
    return all(len(different) == 1 for different in (heads, rotated, around, epsilons))


def rotations(decoder: Decoder) -> list[Rotation]:
    """The rotations of its layers, each once, the decoder's own first."""
    found = {id(r): r for a in decoder.attentions if (r := a.rotation) is not None}
    others = (r for key, r in found.items() if key != id(decoder.rotation))
    return [decoder.rotation, *others]


def attention_window(layer: DecoderLayer) -> int | None:
    return layer.mixer.window if isinstance(layer.mixer, Attention) else None
