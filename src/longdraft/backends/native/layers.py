"""Which layers the native kernels compute, by their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    DeltaNet,
    ExpertsMLP,
    GatedMLP,
    LinearRows,
    MambaTwo,
    Norm,
    Rotation,
    SharedLatent,
    ShortConvolution,
)
from longdraft.backends.describe import described
from longdraft.backends.described_fields import LLAMA_LIKE, unread
from longdraft.backends.features.bounded_positions import ROPES
from longdraft.families import family_of
from longdraft.ops import native

# The fields that NativeStep and HybridStep read. A model with anything in another field is refused.
READ: Mapping[type, frozenset[str]] = {
    **LLAMA_LIKE,
    Decoder: LLAMA_LIKE[Decoder]
    | {"embedding_norm", "embedding_scale", "logit_divisor", "logit_cap"}
    | {"positions", "first_position"},
    DecoderLayer: LLAMA_LIKE[DecoderLayer]
    | {"mixer_output_norm", "mlp_output_norm", "residual_scale", "parallel"},
    Attention: LLAMA_LIKE[Attention]
    | {"gated", "window", "cap", "joint_norms", "late_norms", "sinks"}
    | {"gates", "gate_function", "limit", "temperature", "latent"},
    SharedLatent: frozenset(field.name for field in fields(SharedLatent)),
    GatedMLP: LLAMA_LIKE[GatedMLP] | {"slopes"},
    LinearRows: frozenset({"weight", "bias"}),
    Rotation: LLAMA_LIKE[Rotation] | {"interleaved"},
    Norm: LLAMA_LIKE[Norm] | {"plus_one", "kind"},
    DeltaNet: frozenset(field.name for field in fields(DeltaNet)),
    ShortConvolution: frozenset(field.name for field in fields(ShortConvolution)),
    MambaTwo: frozenset(field.name for field in fields(MambaTwo)),
    ExpertsMLP: frozenset(field.name for field in fields(ExpertsMLP)),
}


PLAIN = {nn.Linear, LinearRows}
NORMED = (DeltaNet, MambaTwo)  # mixers that normalize their outputs
MOST_ROTATED = 256  # numbers behind a latent

# By their names in descriptions.
ACTIVATIONS = {
    "silu": native.Activation.SILU,
    "GELUActivation": native.Activation.GELU,
    "GELUTanh": native.Activation.GELU_TANH,
    "NewGELUActivation": native.Activation.GELU_TANH,
    "PytorchGELUTanh": native.Activation.GELU_TANH,
    "ReLU": native.Activation.RELU,
    "ReLUSquaredActivation": native.Activation.RELU2,
    "XIELUActivation": native.Activation.XIELU,
    "clamped": native.Activation.CLAMPED,
}


def computes(hf: Any, windows: Mapping[int, object]) -> bool:
    """Whether these kernels compute the layers of a model; windows: as in its config."""
    family = family_of(hf)
    decoder = described(hf)
    if family is None or decoder is None:
        return False
    seen = {i: attention_window(layer) for i, layer in enumerate(decoder.layers)}
    step = "hybrid" if decoder.recurrent else "decoder"
    return (
        not unread(decoder, READ)
        and all(knows(layer) for layer in decoder.layers)
        and family.native in (step, "hybrid")  # a hybrid may have no recurrent layers
        and all(rotation.kind in ROPES for rotation in rotations(decoder))
        and is_uniform(decoder)
        and {i: window for i, window in seen.items() if window is not None} == windows
    )


def knows(layer: DecoderLayer) -> bool:
    """Whether the kernels know the functions of a layer, whose fields they read."""
    if any(getattr(norm.module, "bias", None) is not None for norm in without_bias(layer)):
        return False
    mlps = gated_mlps(layer)
    if any(mlp.activation not in ACTIVATIONS for mlp in all_mlps(layer)):
        return False
    if isinstance(layer.mlp, ExpertsMLP) and layer.mlp.activation == "XIELUActivation":
        return False
    experts = [layer.mlp.inner] if isinstance(layer.mlp, ExpertsMLP) else []
    if any(inner < 16 or inner % 16 for inner in (*experts, *(mlp.up.shape[0] for mlp in mlps))):
        return False
    if isinstance(layer.mlp, ExpertsMLP) and not knows_gate(layer.mlp):
        return False
    mixer = layer.mixer
    if isinstance(mixer, Attention) and mixer.latent is not None:
        return knows_latent(mixer.latent)
    if isinstance(mixer, MambaTwo):
        size = mixer.heads * mixer.dim // mixer.norm_groups
        return mixer.activation == "silu" and mixer.dim % 16 == size % 16 == mixer.states % 16 == 0
    if not isinstance(mixer, DeltaNet):
        return True
    plain = type(mixer.b.module) is type(mixer.a.module) and type(mixer.b.module) in PLAIN
    values = mixer.value_heads * mixer.value_dim
    return (
        plain
        and mixer.b.module.bias is None
        and mixer.a.module.bias is None
        and mixer.activation == "silu"
        and mixer.value_dim % 16 == values % 16 == 0
    )


def knows_latent(latent: SharedLatent) -> bool:
    """Whether latents have sizes and norms that the kernels know."""
    sizes = [latent.rank, latent.plain, latent.rotated, latent.value]
    if latent.q_down is not None:
        sizes.append(latent.q_down.shape[0])
    alike = {(norm.eps, norm.kind, norm.plus_one) for norm in norms_of(latent)}
    return (
        all(size % 16 == 0 for size in sizes)
        and min(sizes) > 0
        and latent.rotated <= MOST_ROTATED
        and latent.value <= latent.rank + latent.rotated
        and alike == {(latent.norm.eps, "rms", False)}
        and type(latent.expand.module) is nn.Linear
    )


def norms_of(latent: SharedLatent) -> list[Norm]:
    """Norms of latents and of narrowed queries, which have an epsilon of their own."""
    return [norm for norm in (latent.norm, latent.q_norm) if norm is not None]


def without_bias(layer: DecoderLayer) -> list[Norm]:
    """The norms of which the kernels read no bias."""
    found = (layer.mixer_output_norm, layer.mlp_output_norm)
    return [norm for norm in found if norm is not None]


def gated_mlps(layer: DecoderLayer) -> list[GatedMLP]:
    """The MLPs that all nodes of a layer go through."""
    mlp = layer.mlp.shared if isinstance(layer.mlp, ExpertsMLP) else layer.mlp
    return [] if mlp is None else [mlp]


def all_mlps(layer: DecoderLayer) -> list[GatedMLP | ExpertsMLP]:
    """The MLPs of a layer: experts, and those that all nodes go through."""
    experts = [layer.mlp] if isinstance(layer.mlp, ExpertsMLP) else []
    return [*experts, *gated_mlps(layer)]


def routers(hf: Any) -> set[Tensor]:
    """The parameters of routers, which the kernels read as float32, whatever they are."""
    decoder = described(hf)
    layers = () if decoder is None else decoder.layers
    mlps = [layer.mlp for layer in layers if isinstance(layer.mlp, ExpertsMLP)]
    found = [x for m in mlps for x in (m.router, m.router_bias, m.correction) if x is not None]
    storage = {x.data_ptr() for x in found}
    return {p for p in hf.parameters() if p.data_ptr() in storage}


def knows_gate(mlp: ExpertsMLP) -> bool:
    """Whether the gate of the shared MLP is the product that the kernels compute."""
    gate = mlp.shared_gate
    return gate is None or (
        type(gate.module) is nn.Linear and getattr(gate.module, "bias", None) is None
    )


def is_uniform(decoder: Decoder) -> bool:
    """Whether what the kernels are told once for all layers is the same in each, and that some
    layer attends.
    """
    heads = {
        (
            *(a.heads, a.key_heads, a.dim, a.scale, a.gated, a.joint_norms, a.late_norms),
            *(a.limit, a.temperature, a.gates_heads, a.gate_function, latent_numbers(a)),
        )
        for a in decoder.attentions
    }
    rotated = {(r.scaling, r.interleaved) for r in rotations(decoder)} or {(1.0, False)}
    mlps = [mlp for layer in decoder.layers for mlp in all_mlps(layer)]
    inside = {mlp.activation for mlp in mlps}
    limits = {(m.limit, m.slope) for m in mlps if isinstance(m, ExpertsMLP)} or {(None, 1.0)}
    side = {layer.parallel for layer in decoder.layers}
    scales = {layer.residual_scale for layer in decoder.layers}
    latents = [a.latent for a in decoder.attentions if a.latent is not None]
    own = {id(norm) for latent in latents for norm in norms_of(latent)}
    own |= {id(mixer.norm) for mixer in decoder.recurrent if isinstance(mixer, NORMED)}
    norms = {(norm.eps, norm.kind) for norm in decoder.norms if id(norm) not in own}
    return all(
        len(different) == 1 for different in (heads, rotated, inside, limits, scales, norms, side)
    )


def latent_numbers(attention: Attention) -> tuple[float, ...] | None:
    """Numbers of its latents that the kernels are told once. None: it has none."""
    x = attention.latent
    return x and (x.rank, x.plain, x.rotated, x.value, x.put_apart, x.norm.eps)


def rotations(decoder: Decoder) -> list[Rotation]:
    """The rotations of its layers, each once, the decoder's own first."""
    found = {id(r): r for a in decoder.attentions if (r := a.rotation) is not None}
    return list(found.values())


def attention_window(layer: DecoderLayer) -> int | None:
    return layer.mixer.window if isinstance(layer.mixer, Attention) else None
