"""Finds the description of a model's layers in its modules.

It is closed: every module must be of a class of its family's file in Transformers and unchanged,
and have no part and no attribute but those that are read or known not to matter. What is left
raises Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    ExpertsMLP,
    GatedMLP,
    Linear,
    Norm,
    Recurrent,
)
from longdraft.backends.describe_attention import (
    attention_of,
    delta_net_of,
    mamba_of,
    rotations_of,
    short_convolution_of,
)
from longdraft.backends.describe_experts import OUTPUT_NORM, experts_of
from longdraft.backends.describe_latent import TO_LATENT, latent_attention_of
from longdraft.backends.describe_parts import ACTIVATIONS, PartFinder, first_of
from longdraft.backends.known_modules import (
    Unknown,
    check,
    class_of,
    name_of,
    read_by,
    reads,
    unchanged,
)
from longdraft.families import ModelFamily, family_of


def self_attention_of(finder: PartFinder, module: Any) -> Attention:
    """The description of attention to heads, or to latents. Raises Unknown."""
    of = latent_attention_of if hasattr(module, TO_LATENT) else attention_of
    return of(finder, module)


# By the names of children of a layer.
MIXERS: Mapping[str, Callable[[PartFinder, Any], Attention | Recurrent]] = {
    "self_attn": self_attention_of,
    "self_attention": attention_of,
    "attention": attention_of,
    "attn": attention_of,
    "linear_attn": delta_net_of,
    "conv": short_convolution_of,
    "mamba": mamba_of,
}


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
    LayerNorms("input_layernorm", MIXER, "pre_mlp_layernorm", "post_mlp_layernorm"),
    LayerNorms("input_layernorm", "post_norm1", MIXER, "post_norm2"),
    LayerNorms(None, MIXER, None, "post_feedforward_layernorm"),
    LayerNorms("input_layernorm", None, "pre_feedforward_layernorm", None),
    LayerNorms("attention_layernorm", None, "feedforward_layernorm", None),
    LayerNorms("input_layernorm", None, "pre_ff_layernorm", None),
    LayerNorms("operator_norm", None, "ffn_norm", None),
    LayerNorms("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"),
    LayerNorms("ln_1", None, "ln_2", None),
    LayerNorms("self_attn_layer_norm", None, "final_layer_norm", None),
    LayerNorms("input_layernorm", None, None, None),  # attention and MLP side by side
)
ALONE = {"norm", "mixer"}
SELF, INSIDE = "self_attn", {"fc1", "fc2"}
FIRST = "norm_attn_norm"  # holds the mixer, and the norms of both halves of a layer
BESIDE_EXPERTS = "shared_mlp"
MLPS = ("mlp", "block_sparse_moe", "feed_forward", BESIDE_EXPERTS)
# Parts that do nothing where nothing is trained.
IDLE_IN_LAYER = {
    *("resid_attn_dropout", "resid_mlp_dropout", "resid_dropout", "dropout"),
    *("post_attention_dropout", "post_mlp_dropout"),
}
IDLE_IN_BODY = {"embed_dropout", "emb_dropout", "drop"}
EXTENSION = "embed_tokens_extend"  # reads images and sounds, and leaves texts as they are
BODIES = ("model", "gpt_neox", "transformer")
LISTS = ("layers", "blocks", "h")
DECODERS = ("language_model", "text_model")  # in models that read images, too
HEADS = ("lm_head",)
EMBEDDINGS = ("embed_tokens", "embed_in", "embeddings", "wte", "word_embeddings")
POSITIONS = ("embed_positions", "wpe")
MASK = "bias"  # of older bodies: a buffer that nothing reads
FINAL_NORMS = ("ln_f", "norm", "final_layernorm", "final_layer_norm", "norm_f", "embedding_norm")
ROTATIONS = {"rotary_emb", "rotary_embs", "pos_emb"}
# Attributes that are read below, or change nothing in a pass without gradients.
OF_EMBEDDING = {
    *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type"),
    *("scale_grad_by_freq", "sparse", "scalar_embed_scale"),
}
RESIDUAL_SCALES = ("residual_multiplier", "residual_scale")
OF_LAYER = {
    *("config", "hidden_size", "attention_type", "layer_type", "block_type", "layer_idx"),
    *("use_parallel_residual", "is_attention_layer", "moe_enabled", *RESIDUAL_SCALES),
    *("inner_dim", "embed_dim", "dropout", "do_layer_norm_before", "resid_pdrop"),
    *("hidden_dropout", "num_heads"),
    *("has_experts", MIXER, *MLPS, *MIXERS),  # those that are None
}
OF_BODY = {"embedding_multiplier", "embedding_dropout", "dropout", "layerdrop", "emb_pdrop"}
OF_IMAGES = {"projector_dropout"}
OF_MODEL = {"router_aux_loss_coef", "z_loss_coefficient", "logit_scale", "logits_scaling"}


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
    config = hf.config.get_text_config()
    width = config.hidden_size
    table = (config.vocab_size, width)
    body = first_of(BODIES, hf)
    head = first_of(HEADS, hf)
    check(hf, type(hf), {body, head})
    around = getattr(hf, body)
    if any(hasattr(around, name) for name in DECODERS):
        model = _inside(around, type(hf))
    else:
        model = _inner_body(around, family)
    embedding = first_of(EMBEDDINGS, model)
    norm = first_of(FINAL_NORMS, model)
    held = first_of(LISTS, model)
    position = next((name for name in POSITIONS if hasattr(model, name)), None)
    optional = {*ROTATIONS, *IDLE_IN_BODY, *POSITIONS, EXTENSION, MASK}
    parts = {embedding, norm, held}
    check(model, class_of(family, type(model).__name__), parts, optional=optional)
    if extension := getattr(model, EXTENSION, None):
        check(extension, class_of(family, family.extension), {"image_embed", "audio_embed"})
    modules = getattr(model, held)
    check(modules, nn.ModuleList, {name for name, _ in modules.named_children()})
    for module, known in ((hf, OF_MODEL), (around, OF_BODY | OF_IMAGES), (model, OF_BODY)):
        numbers = {name for name, value in vars(module).items() if isinstance(value, float)}
        if other := sorted(numbers - known):
            raise Unknown(f"{type(module).__name__} has {other[0]}, which no field describes")
    finder = Finder(family, config, rotations_of(model, family))
    layers = tuple(finder.layer(layer) for layer in modules)
    attentions = (layer.mixer for layer in layers if isinstance(layer.mixer, Attention))
    rotation = next((a.rotation for a in attentions if a.rotation), None)
    final = finder.norm(getattr(model, norm), norm, width)
    return Decoder(
        embedding=Linear(getattr(model, embedding), embedding, table),
        layers=layers,
        norm=final,
        head=finder.linear(getattr(hf, head), head, table),
        rotation=rotation,
        **({} if position is None else _positions(getattr(model, position), position, family)),
        embedding_norm=final if family.norms_embeddings else None,
        embedding_scale=_embedding_scale(model, getattr(model, embedding), family),
        logit_divisor=_logit_divisor(hf, config, family),
        logit_cap=read_by(hf, "final_logit_softcapping", config),
    )


def _inner_body(model: Any, family: ModelFamily) -> Any:
    """The module that has the layers, which may be the only part of a body."""
    if [name for name, _ in model.named_children()] != ["decoder"]:
        return model
    check(model, class_of(family, type(model).__name__), {"decoder"})
    return model.decoder


def _positions(module: Any, name: str, family: ModelFamily) -> dict[str, Any]:
    """The fields of a table of positions."""
    first = getattr(module, "offset", 0)
    cls = class_of(family, family.positions) if first else nn.Embedding
    check(module, cls, {"weight"}, OF_EMBEDDING | {"offset"})
    if module.max_norm is not None:
        raise Unknown("the positions' table limits its rows")
    shape = (module.num_embeddings, module.embedding_dim)
    return {"positions": Linear(module, name, shape), "first_position": first}


class Finder(PartFinder):
    """Describes layers of one family."""

    def layer(self, module: Any) -> DecoderLayer:
        """Raises Unknown."""
        children = {name for name, _ in module.named_children()}
        if children == ALONE:
            return self._alone(module)
        if children >= INSIDE:
            return self._with_mlp_inside(module, children)
        if children == {FIRST, "ffn"}:
            return self._in_two_parts(module)
        mlp = first_of(MLPS, module)
        beside = {BESIDE_EXPERTS} & children - {mlp}
        own = children - MIXERS.keys() - {mlp} - beside - IDLE_IN_LAYER
        norms = next((n for n in NORMS if n.names == own), None)
        if norms is None:
            raise Unknown(f"{type(module).__name__} has other norms than are known")
        optional = {*MIXERS, *IDLE_IN_LAYER, BESIDE_EXPERTS}
        delta = "linear_attn" in children
        cls = class_of(self.family, self.family.delta_layer if delta else self.family.layer)
        check(module, cls, norms.names | {mlp}, OF_LAYER, optional)
        for idle in IDLE_IN_LAYER & children:
            check(getattr(module, idle), nn.Dropout, set())
        mixers = [name for name in MIXERS if name in children]
        if len(mixers) != 1:
            raise Unknown(f"{type(module).__name__} has no mixer, or two")
        parallel = read_by(module, "use_parallel_residual", module)
        if parallel is None:
            parallel = norms.mlp is None and norms.mixer_output is None
        shared = getattr(module, BESIDE_EXPERTS) if beside else None
        return DecoderLayer(
            mixer=MIXERS[mixers[0]](self, getattr(module, mixers[0])),
            mlp=self._second_half(getattr(module, mlp), shared),
            input_norm=self._norm_in(module, norms.input),
            mlp_norm=self._norm_in(module, norms.mlp),
            mixer_output_norm=self._norm_in(module, norms.mixer_output),
            mlp_output_norm=self._mlp_output_norm(module, mlp, norms.mlp_output),
            residual_scale=_residual_scale(module),
            parallel=bool(parallel),
        )

    def _with_mlp_inside(self, module: Any, children: set[str]) -> DecoderLayer:
        """A layer of attention and the linear layers of an MLP without gates (OPT)."""
        function = first_of(ACTIVATIONS, module)
        norms = next((n for n in NORMS if n.names == children - INSIDE - {SELF, function}), None)
        if norms is None or not module.do_layer_norm_before:
            raise Unknown(f"{type(module).__name__} has other norms than are known")
        cls = class_of(self.family, self.family.layer)
        check(module, cls, norms.names | INSIDE | {SELF, function}, OF_LAYER)
        width, inner = self.config.hidden_size, self.config.ffn_dim
        mlp = GatedMLP(
            gate=None,
            up=self.linear(module.fc1, "fc1", (inner, width)),
            down=self.linear(module.fc2, "fc2", (width, inner)),
            activation=name_of(getattr(module, function)),
        )
        return DecoderLayer(
            mixer=attention_of(self, module.self_attn),
            mlp=mlp,
            input_norm=self._norm_in(module, norms.input),
            mlp_norm=self._norm_in(module, norms.mlp),
        )

    def _alone(self, module: Any) -> DecoderLayer:
        """A layer that has a mixer or an MLP alone."""
        check(module, class_of(self.family, self.family.layer), ALONE, OF_LAYER)
        inner = module.mixer
        norm = self._norm_in(module, "norm")
        if type(inner) is class_of(self.family, self.family.attention):
            return DecoderLayer(attention_of(self, inner), None, norm, None)
        if type(inner) is class_of(self.family, self.family.mamba):
            return DecoderLayer(mamba_of(self, inner), None, norm, None)
        return DecoderLayer(None, self._second_half(inner, None), None, norm)

    def _in_two_parts(self, module: Any) -> DecoderLayer:
        """A layer whose first part holds its mixer and norms."""
        check(module, class_of(self.family, self.family.layer), {FIRST, "ffn"}, OF_LAYER)
        first = getattr(module, FIRST)
        parts = {"norm_1", "attn", "norm_2"}
        check(first, class_of(self.family, self.family.first_part), parts, OF_LAYER)
        return DecoderLayer(
            mixer=attention_of(self, first.attn),
            mlp=self._second_half(module.ffn, None),
            input_norm=self._norm_in(first, "norm_1"),
            mlp_norm=self._norm_in(first, "norm_2"),
        )

    def _second_half(self, module: Any, beside: Any) -> GatedMLP | ExpertsMLP:
        """An MLP or experts, and of a layer that has one beside its experts that MLP with them."""
        if not hasattr(module, "experts"):
            if beside is not None:
                raise Unknown(f"{type(beside).__name__} lies beside no experts")
            return self.mlp(module, self._inner_of(module))
        experts = experts_of(self, module)
        if beside is None:
            return experts
        if experts.shared is not None:
            raise Unknown(f"{type(module).__name__} has two MLPs for all nodes")
        return replace(experts, shared=self.mlp(beside, self.config.shared_intermediate_size))

    def _inner_of(self, module: Any) -> int | None:
        """How many numbers an MLP has inside, where the config has another number; None: as it
        says.
        """
        if hasattr(module, "input_linear"):
            return self.config.shared_intermediate_size
        if hasattr(self.config, "n_inner"):
            return self.config.n_inner or 4 * self.config.hidden_size
        if size := getattr(self.config, "ffn_hidden_size", None):
            return size
        return getattr(getattr(module, "w1", None), "out_features", None)

    def _mlp_output_norm(self, layer: Any, mlp: str, name: str | None) -> Norm | None:
        """That of a layer, or of its experts."""
        inside = getattr(layer, mlp)
        if not hasattr(inside, OUTPUT_NORM):
            return self._norm_in(layer, name)
        if name is not None:
            raise Unknown(f"{type(layer).__name__} normalizes what its experts return twice")
        return self._norm_in(inside, OUTPUT_NORM)

    def _norm_in(self, layer: Any, name: str | None) -> Norm | None:
        module = None if name is None else getattr(layer, name)
        if name is None or type(module) is nn.Identity:
            return None
        return self.norm(module, name, self.config.hidden_size)


def _residual_scale(layer: Any) -> float:
    """By which a layer multiplies what it adds to the stream."""
    found = [read_by(layer, name, layer) for name in RESIDUAL_SCALES]
    return next((scale for scale in found if scale), 1.0)


def _inside(model: Any, whole: type) -> Any:
    """The decoder in a model that also reads images, which lie in modules beside it."""
    if type(model).__module__ != whole.__module__:
        raise Unknown(f"{type(model).__name__} is no part of {whole.__name__}")
    unchanged(model)
    return getattr(model, first_of(DECODERS, model))


def _logit_divisor(hf: Any, config: Any, family: ModelFamily) -> float:
    """By which the head's outputs are divided."""
    scaling = read_by(hf, "logits_scaling", config)
    if scaling:
        return 1 / scaling if family.scales_logits else scaling
    return 1 / (read_by(hf, "logit_scale", hf) or 1.0)


def _scaled_embedding(family: ModelFamily) -> Any:
    """Its class of an embedding that multiplies."""
    found = (class_of(family, name) for name in family.scaled_embeddings)
    return next((cls for cls in found if cls is not None), None)


def _embedding_scale(model: Any, module: Any, family: ModelFamily) -> float:
    """By which a body multiplies its embeddings."""
    scaled = family.scaled
    cls = _scaled_embedding(family) if scaled else nn.Embedding
    check(module, cls, {"weight", *["embed_scale"] * scaled}, OF_EMBEDDING)
    if module.max_norm is not None:
        raise Unknown("the embedding limits its rows")
    if reads(model, "mup_enabled") and model.config.mup_enabled:
        return model.config.hidden_size**0.5
    if not scaled:
        return read_by(model, "embedding_multiplier", model) or 1.0
    dtype = module.weight.dtype
    return torch.tensor(module.scalar_embed_scale, dtype=dtype, device="cpu").item()
