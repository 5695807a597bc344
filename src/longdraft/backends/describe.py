"""Finds the description of a model's layers in its modules.

It is closed: every module must be of the class that its family's row in families.py names and
unchanged, and have no part and no attribute but those that are read or known not to matter. What
is left raises Unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    DeltaNet,
    GatedMLP,
    Linear,
    LinearRows,
    Norm,
    Rotation,
)
from longdraft.backends.describe_experts import experts_of
from longdraft.backends.known_modules import (
    Unknown,
    check,
    class_of,
    name_of,
    read_by,
    reads,
    unchanged,
)
from longdraft.backends.packed_linear import EightBitInputs, PackedLinear
from longdraft.families import ModelFamily, family_of

PACKED = {PackedLinear, EightBitInputs}
# Parts of a layer that do nothing where nothing is trained.
IDLE = {"resid_attn_dropout", "resid_mlp_dropout"}


class LayerNorms(NamedTuple):
    """The names of a layer's norms, see DecoderLayer; None: it has none there."""

    input: str | None
    mixer_output: str | None
    mlp: str | None
    mlp_output: str | None

    @property
    def names(self) -> set[str]:
        return {name for name in self if name is not None}


MIXER = "post_attention_layernorm"
NORMS = (
    LayerNorms("input_layernorm", None, MIXER, None),
    LayerNorms("input_layernorm", MIXER, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    LayerNorms("input_layernorm", "post_self_attn_layernorm", MIXER, "post_mlp_layernorm"),
    LayerNorms(None, MIXER, None, "post_feedforward_layernorm"),
    LayerNorms("input_layernorm", None, "pre_feedforward_layernorm", None),
    LayerNorms("input_layernorm", None, None, None),  # attention and MLP side by side
)
# Of queries and keys: before the rotation, and behind it.
HEAD_NORMS = ("q_norm", "k_norm")
LATE_NORMS = ("query_layernorm", "key_layernorm")
# Attributes that are read below, or change nothing in a pass without gradients.
OF_EMBEDDING = {
    *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type"),
    *("scale_grad_by_freq", "sparse", "scalar_embed_scale"),
}
OF_LAYER = {
    *("config", "hidden_size", "attention_type", "layer_type", "block_type", "layer_idx"),
    "residual_multiplier",
}
OF_ATTENTION = {
    *("config", "layer_idx", "layer_type", "attention_dropout", "num_key_value_groups"),
    *("head_dim", "scaling", "is_causal", "sliding_window", "attn_logit_softcapping"),
    *("is_sliding", "use_rope", "residual_dropout", "num_attention_heads", "num_key_value_heads"),
    *("attention_type", "hidden_size", "sliding_window_pattern", "num_heads", "use_qk_norm"),
    *("rope_parameters", "partial_rotary_factor"),
}
OF_DELTA_NET = {
    *("hidden_size", "layer_idx", "layer_type", "repeat_qk_heads", "conv_kernel_size", "conv_dim"),
    *("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "key_dim", "value_dim"),
    *("activation", "layer_norm_epsilon"),
}
PROJECTIONS = (
    {"gate_proj", "up_proj", "down_proj"},
    {"gate_up_proj", "down_proj"},
    {"up_proj", "down_proj"},
    {"c_fc", "c_proj"},
)
OF_MLP = {
    "config",
    "layer_idx",
    "layer_type",
    "hidden_size",
    "intermediate_size",
    "residual_dropout",
}
OF_ROTATION = {
    *("config", "rope_type", "attention_scaling", "mrope_section"),
    *("max_seq_len_cached", "original_max_seq_len"),
}


def described(hf: Any) -> Decoder | None:
    """The description of a causal model; None if it is unknown."""
    try:
        return describe(hf)
    except Unknown:
        return None


def describe(hf: Any) -> Decoder:
    """The description of a causal model. Raises Unknown."""
    family = family_of(hf)
    if family is None:
        raise Unknown(f"{type(hf).__name__} is of no family whose layers are described")
    model = hf.model
    if getattr(hf.config, "clip_qkv", None) is not None:
        raise Unknown(f"{type(hf).__name__} limits queries, keys and values")
    width = hf.config.hidden_size
    table = (hf.config.vocab_size, width)
    check(hf, type(hf), {"model", "lm_head"})
    body = class_of(family, type(model).__name__)
    check(model, body, {"embed_tokens", "layers", "norm", "rotary_emb"})
    check(model.layers, nn.ModuleList, {name for name, _ in model.layers.named_children()})
    of_body = {"embedding_multiplier", "embedding_dropout"}
    of_head = {"router_aux_loss_coef", "logit_scale", "logits_scaling"}
    for module, known in ((hf, of_head), (model, of_body)):
        numbers = {name for name, value in vars(module).items() if isinstance(value, float)}
        if other := sorted(numbers - known):
            raise Unknown(f"{type(module).__name__} has {other[0]}, which no field describes")
    rotations = _rotations(model.rotary_emb, family)
    finder = Finder(family, hf.config, rotations)
    layers = tuple(finder.layer(layer) for layer in model.layers)
    attentions = (layer.mixer for layer in layers if isinstance(layer.mixer, Attention))
    rotation = next((a.rotation for a in attentions if a.rotation), None)
    if rotation is None:
        raise Unknown(f"{type(hf).__name__} rotates nothing")
    logit_scale = read_by(hf, "logit_scale", hf)
    return Decoder(
        embedding=Linear(model.embed_tokens, "embed_tokens", table),
        layers=layers,
        norm=finder.norm(model.norm, "norm", width),
        head=finder.linear(hf.lm_head, "lm_head", table),
        rotation=rotation,
        embedding_scale=_embedding_scale(model, family),
        logit_divisor=read_by(hf, "logits_scaling", hf.config) or 1 / (logit_scale or 1.0),
        logit_cap=read_by(hf, "final_logit_softcapping", hf.config),
    )


@dataclass(frozen=True)
class Finder:
    """Describes modules of one family, whose sizes a config implies. Its methods raise Unknown.

    rotations: by kind of layer, see `_rotations`.
    """

    family: ModelFamily
    config: Any
    rotations: Mapping[str | None, Rotation] = field(default_factory=dict)

    def layer(self, module: Any) -> DecoderLayer:
        mixers = {"self_attn", "linear_attn"}
        children = {name for name, _ in module.named_children()}
        inner = "block_sparse_moe" if "block_sparse_moe" in children else "mlp"
        norms = next((n for n in NORMS if n.names == children - mixers - {inner} - IDLE), None)
        if norms is None:
            raise Unknown(f"{type(module).__name__} has other norms than are known")
        parts = norms.names | {inner}
        check(module, class_of(self.family, self.family.layer), parts, OF_LAYER, mixers | IDLE)
        if len(mixers & children) != 1:
            raise Unknown(f"{type(module).__name__} has no mixer, or two")
        if hasattr(module, "self_attn"):
            mixer = self.attention(module.self_attn)
        else:
            mixer = self.delta_net(module.linear_attn)
        mlp = getattr(module, inner)
        return DecoderLayer(
            mixer=mixer,
            mlp=experts_of(self, mlp) if hasattr(mlp, "experts") else self.mlp(mlp),
            input_norm=self._norm_in(module, norms.input),
            mlp_norm=self._norm_in(module, norms.mlp),
            mixer_output_norm=self._norm_in(module, norms.mixer_output),
            mlp_output_norm=self._norm_in(module, norms.mlp_output),
            residual_scale=read_by(module, "residual_multiplier", module) or 1.0,
            parallel=norms.mlp is None and norms.mixer_output is None,
        )

    def attention(self, module: Any) -> Attention:
        c = self.config
        together = hasattr(module, "qkv_proj")
        parts = {"qkv_proj", "o_proj"} if together else {"q_proj", "k_proj", "v_proj", "o_proj"}
        cls = class_of(self.family, self.family.attention)
        check(module, cls, parts, OF_ATTENTION, {*HEAD_NORMS, *LATE_NORMS, "sinks"})
        if module.is_causal is not True:
            raise Unknown(f"{type(module).__name__} is not causal")
        dim = int(module.head_dim)
        width = c.hidden_size
        queries = c.num_attention_heads * dim
        keys = c.num_key_value_heads * dim
        late = hasattr(module, LATE_NORMS[0])
        norms = {
            field: getattr(module, name)
            for field, name in zip(HEAD_NORMS, LATE_NORMS if late else HEAD_NORMS, strict=True)
            if getattr(module, name, None) is not None
        }
        if any(norm.weight.dim() > 1 for norm in norms.values()):
            raise Unknown(f"{type(module).__name__} has norms with weights for each head")
        joint = any(len(norm.weight) != dim for norm in norms.values())
        sizes = {"q_norm": queries, "k_norm": keys} if joint else dict.fromkeys(norms, dim)
        outputs = {"q_proj": queries * (1 + self.family.gated), "k_proj": keys, "v_proj": keys}
        if together:
            projected = self.rows(module.qkv_proj, outputs)
        else:
            projected = [self.linear(getattr(module, n), n, (outputs[n], width)) for n in outputs]
        q, k, v = projected
        return Attention(
            q=q,
            k=k,
            v=v,
            o=self.linear(module.o_proj, "o_proj", (width, queries)),
            heads=c.num_attention_heads,
            key_heads=c.num_key_value_heads,
            dim=dim,
            scale=module.scaling,
            rotation=self._rotation_of(module),
            gated=self.family.gated,
            window=self._window_of(module),
            cap=read_by(module, "attn_logit_softcapping", module),
            sinks=read_by(module, "sinks", module),
            joint_norms=joint,
            late_norms=late,
            **{name: self.norm(norm, name, sizes[name]) for name, norm in norms.items()},
        )

    def _window_of(self, attention: Any) -> int | None:
        if reads(attention, "is_sliding") and not attention.is_sliding:
            return None
        of_config = getattr(self.config, "sliding_window", None)
        return getattr(attention, "sliding_window", of_config) or None

    def _rotation_of(self, attention: Any) -> Rotation | None:
        windows = getattr(self.config, "sliding_window", None) is not None
        beside_windows = windows and self._window_of(attention) is None
        if (self.family.turns_windows and beside_windows) or read_by(
            attention, "use_rope", attention
        ) in (0, False):
            return None
        kind = getattr(attention, "layer_type", getattr(attention, "attention_type", None))
        return self.rotations.get(None) or self.rotations.get(kind)

    def delta_net(self, module: Any) -> DeltaNet:
        parts = {
            *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
            *("conv1d", "dt_bias", "A_log", "norm"),
        }
        check(module, class_of(self.family, self.family.delta_net), parts, OF_DELTA_NET)
        check(module.conv1d, nn.Conv1d, {"weight"}, optional={"bias"})
        norm = module.norm
        gated = class_of(self.family, self.family.gated_norm)
        check(norm, gated, {"weight"}, {"variance_epsilon", "activation"})
        if norm.activation != "silu":
            raise Unknown(f"{type(norm).__name__} has {norm.activation} of its gates")
        width = self.config.hidden_size
        values = module.value_dim
        heads = module.num_v_heads
        return DeltaNet(
            qkv=self.linear(module.in_proj_qkv, "in_proj_qkv", (module.conv_dim, width)),
            z=self.linear(module.in_proj_z, "in_proj_z", (values, width)),
            b=self.linear(module.in_proj_b, "in_proj_b", (heads, width)),
            a=self.linear(module.in_proj_a, "in_proj_a", (heads, width)),
            o=self.linear(module.out_proj, "out_proj", (width, values)),
            convolution=module.conv1d,
            activation=module.activation,
            log_rate=module.A_log,
            step_bias=module.dt_bias,
            norm=Norm(norm, "norm", (module.head_v_dim,), norm.variance_epsilon),
            key_heads=module.num_k_heads,
            key_dim=module.head_k_dim,
            value_heads=heads,
            value_dim=module.head_v_dim,
        )

    def mlp(self, module: Any, inner: int | None = None) -> GatedMLP:
        """inner: how many numbers it has inside, unless the config's."""
        width = self.config.hidden_size
        size = int(inner or self.config.intermediate_size)
        activation = self.activation(module)
        gate = None
        if hasattr(module, "gate_up_proj"):
            gate, up = self.rows(module.gate_up_proj, {"gate_proj": size, "up_proj": size})
        else:
            name = "c_fc" if hasattr(module, "c_fc") else "up_proj"
            up = self.linear(getattr(module, name), name, (size, width))
        if hasattr(module, "gate_proj"):
            gate = self.linear(module.gate_proj, "gate_proj", (size, width))
        name = "c_proj" if hasattr(module, "c_proj") else "down_proj"
        down = self.linear(getattr(module, name), name, (width, size))
        return GatedMLP(gate, up, down, activation)

    def activation(self, module: Any) -> str:
        """That of an MLP, whose linear layers may be of any class."""
        children = {child for child, _ in module.named_children()}
        name = next((name for name in ("act_fn", "activation_fn", "act") if name in children), "")
        if children - {name} not in PROJECTIONS:
            raise Unknown(f"{type(module).__name__} has other projections than are known")
        check(module, class_of(self.family, self.family.mlp), children, OF_MLP)
        return name_of(getattr(module, name))

    def _norm_in(self, layer: Any, name: str | None) -> Norm | None:
        if name is None:
            return None
        return self.norm(getattr(layer, name), name, self.config.hidden_size)

    def norm(self, module: Any, name: str, size: int) -> Norm:
        family = self.family
        kind = "layer" if family.norms.endswith(("LayerNorm", "LayerNorm1P")) else "rms"
        if isinstance(module, nn.LayerNorm):
            cls = nn.LayerNorm if family.norms == "nn.LayerNorm" else class_of(family, family.norm)
            check(
                module, cls, {"weight"}, {"normalized_shape", "eps", "elementwise_affine"}, {"bias"}
            )
            return Norm(module, name, (size,), module.eps, kind, family.plus_one)
        eps = "eps" if family.plus_one else "variance_epsilon"
        check(module, class_of(family, family.norm), {"weight"}, {eps})
        return Norm(module, name, (size,), getattr(module, eps), kind, family.plus_one)

    def rows(self, module: Any, outputs: Mapping[str, int]) -> list[Linear]:
        """Projections whose rows are side by side in one linear layer."""
        if type(module) in PACKED:
            raise Unknown("several projections are packed together")
        width = self.config.hidden_size
        whole = self.linear(module, "", (sum(outputs.values()), width)).module
        if tuple(whole.weight.shape) != (sum(outputs.values()), width):
            raise Unknown(f"{', '.join(outputs)} are not side by side in one matrix")
        sizes = list(outputs.values())
        biases = [None] * len(sizes) if whole.bias is None else whole.bias.detach().split(sizes)
        weights = whole.weight.detach().split(sizes)
        parts = zip(outputs.items(), weights, biases, strict=True)
        return [Linear(LinearRows(w, b), name, (size, width)) for (name, size), w, b in parts]

    def linear(self, module: Any, name: str, shape: tuple[int, int]) -> Linear:
        if type(module) in PACKED:
            unchanged(module)
        else:
            check(module, nn.Linear, {"weight"}, {"in_features", "out_features"}, {"bias"})
        return Linear(module, name, shape)


def _rotations(module: Any, family: ModelFamily) -> dict[str | None, Rotation]:
    """The rotation of each kind of layer; that of None is the one of all."""
    cls = class_of(family, family.rotation)
    kinds = getattr(module, "rope_type", "default")
    if not isinstance(kinds, dict):
        check(module, cls, {"inv_freq"}, OF_ROTATION, {"original_inv_freq"})
        return {None: _rotation(module, family, kinds, "")}
    parts = {f"{kind}_inv_freq" for kind in kinds}
    optional = {f"{kind}_original_inv_freq" for kind in kinds}
    known = OF_ROTATION | {"layer_types", *(f"{kind}_attention_scaling" for kind in kinds)}
    check(module, cls, parts, known, optional)
    return {kind: _rotation(module, family, name, f"{kind}_") for kind, name in kinds.items()}


def _rotation(module: Any, family: ModelFamily, kind: str, prefix: str) -> Rotation:
    """prefix: of its names in the module."""
    frequencies = getattr(module, f"{prefix}inv_freq")
    if frequencies.dim() != 1:
        raise Unknown(f"{type(module).__name__} has several rows of frequencies")
    scaling = getattr(module, f"{prefix}attention_scaling")
    return Rotation(kind, frequencies, scaling, family.interleaved)


def _embedding_scale(model: Any, family: ModelFamily) -> float:
    """By which a body multiplies its embeddings."""
    module = model.embed_tokens
    scaled = family.scaled
    cls = class_of(family, family.scaled_embedding) if scaled else nn.Embedding
    check(module, cls, {"weight", *["embed_scale"] * scaled}, OF_EMBEDDING)
    if module.max_norm is not None:
        raise Unknown("the embedding limits its rows")
    if not scaled:
        return read_by(model, "embedding_multiplier", model) or 1.0
    dtype = module.weight.dtype
    return torch.tensor(module.scalar_embed_scale, dtype=dtype, device="cpu").item()
