"""Describes attention and what some layers have in its place; see describe.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from longdraft.backends.decoder_layer import (
    Attention,
    DeltaNet,
    Linear,
    MambaTwo,
    Norm,
    Rotation,
    ShortConvolution,
)
from longdraft.backends.describe_parts import PartFinder, first_of
from longdraft.backends.known_modules import Unknown, check, class_of, name_of, read_by, reads
from longdraft.families import ModelFamily

# The names of q_norm and k_norm.
HEAD_NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
)
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
# All three in one layer: one after the other, or head by head.
TOGETHER = ("qkv_proj", "Wqkv")
BY_HEAD = "query_key_value"
EITHER = "c_attn"  # head by head where a module has `multi_query` and it is False
OUTPUTS = ("o_proj", "dense", "out_proj", "c_proj")
IDLE = {"attn_dropout", "resid_dropout"}
KEY_HEADS = ("kv_heads", "num_key_value_heads", "num_kv_heads")
GATES = ("g_proj", "gate_proj")
GATE_FUNCTIONS = ("sigmoid", "softplus")
# Attributes that are read below, or change nothing in a pass without gradients.
OF_ATTENTION = {
    *("config", "layer_idx", "layer_type", "attention_dropout", "num_key_value_groups"),
    *("head_dim", "scaling", "is_causal", "sliding_window", "attn_logit_softcapping"),
    *("is_sliding", "use_rope", "residual_dropout", "num_attention_heads", *KEY_HEADS),
    *("attention_type", "hidden_size", "sliding_window_pattern", "num_heads", "use_qk_norm"),
    *("rope_parameters", "partial_rotary_factor", "rotary_ndims", "qk_layernorm", "head_size"),
    *("is_local_attention", "gate_per_head", "force_rope", "clip_qkv", "rope_theta"),
    *("max_position_embeddings", "mrope_section"),
    # of older models
    *("embed_dim", "split_size", "dropout", "enable_bias", "mask_value", "multi_query", "kv_dim"),
    *("is_cross_attention", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
    *("reorder_and_upcast_attn", "attention_softmax_in_fp32", "attn_pdrop", "attn_dropout"),
    *("scale_attention_softmax_in_fp32", "new_decoder_architecture", "hidden_dropout"),
    *("inv_norm_factor", "beta"),
}
OF_DELTA_NET = {
    *("hidden_size", "layer_idx", "layer_type", "repeat_qk_heads", "conv_kernel_size", "conv_dim"),
    *("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "key_dim", "value_dim"),
    *("activation", "layer_norm_epsilon", "allow_neg_eigval", "eps"),
}
OF_CONVOLUTION = {"config", "layer_idx", "layer_type", "conv_kernel_size", "bias"}
OF_MAMBA = {
    *("config", "use_bias", "num_heads", "hidden_size", "ssm_state_size", "conv_kernel_size"),
    *("intermediate_size", "layer_idx", "use_conv_bias", "activation", "layer_norm_epsilon"),
    *("n_groups", "head_dim", "chunk_size", "time_step_limit", "conv_dim", "layer_type"),
    "use_mem_eff_path",
}
OF_ROTATION = {
    *("config", "rope_type", "attention_scaling", "mrope_section"),
    *("max_seq_len_cached", "original_max_seq_len"),
}


def attention_of(finder: PartFinder, module: Any) -> Attention:
    """The description of this attention. Raises Unknown."""
    c = finder.config
    kind = type(module).__name__
    dim = int(getattr(module, "head_dim", None) or module.head_size)
    heads = getattr(module, "num_heads", None) or c.num_attention_heads
    # DBRX's and Falcon's configurations may have other numbers than their modules
    own = (getattr(module, name, None) for name in KEY_HEADS)
    key_heads = next(filter(None, own), None) or getattr(c, "num_key_value_heads", None) or heads
    sizes = {
        "q_proj": heads * dim * (1 + finder.family.gated),
        "k_proj": key_heads * dim,
        "v_proj": key_heads * dim,
    }
    named = next((n for n in (*TOGETHER, BY_HEAD, EITHER) if hasattr(module, n)), None)
    alone = getattr(module, "multi_query", None) is False
    by_head = (named == BY_HEAD and heads == key_heads) or (named == EITHER and alone)
    parts = {first_of(OUTPUTS, module), *((named,) if named else PROJECTIONS)}
    optional = {*GATES, "sinks", "attention_dropout", *IDLE}
    optional |= {name for pair in HEAD_NORMS for name in pair}
    cls = class_of(finder.family, finder.family.attention)
    check(module, cls, parts, OF_ATTENTION, optional)
    if module.is_causal is not True:
        raise Unknown(f"{kind} is not causal")
    width = c.hidden_size
    grouped = getattr(module, "new_decoder_architecture", False)  # and cached for all heads
    if named == BY_HEAD and (grouped or key_heads not in (1, heads)):
        raise Unknown(f"{kind} has other numbers of heads than are known")
    if named:
        q, k, v = finder.rows(getattr(module, named), sizes, heads if by_head else 1)
    else:
        q, k, v = [finder.linear(getattr(module, n), n, (sizes[n], width)) for n in PROJECTIONS]
    out = first_of(OUTPUTS, module)
    norms = _norms_of(finder, module, dim, heads, key_heads)
    limit = read_by(module, "clip_qkv", module if hasattr(module, "clip_qkv") else c)
    if limit is not None and norms.get("joint_norms") is False:
        raise Unknown(f"{kind} limits what it normalizes head by head")
    return Attention(
        q=q,
        k=k,
        v=v,
        o=finder.linear(getattr(module, out), out, (width, heads * dim)),
        heads=heads,
        key_heads=key_heads,
        dim=dim,
        scale=module.scaling if hasattr(module, "scaling") else module.inv_norm_factor,
        rotation=rotation_of(finder, module),
        gated=finder.family.gated,
        window=_window_of(finder, module),
        cap=read_by(module, "attn_logit_softcapping", module),
        sinks=read_by(module, "sinks", module),
        limit=limit,
        temperature=_temperature_of(finder, module),
        late_norms=finder.family.late_norms,
        **norms,
        **_gates_of(finder, module, dim, heads),
    )


def _norms_of(
    finder: PartFinder, module: Any, dim: int, heads: int, key_heads: int
) -> dict[str, Any]:
    """The fields of queries' and keys' norms."""
    held = [names for names in HEAD_NORMS if any(getattr(module, n, None) for n in names)]
    if not held:
        return {}
    norms: list[Any] = [getattr(module, name, None) for name in held[0]]
    if len(held) > 1 or None in norms or not all(reads(module, name) for name in held[0]):
        raise Unknown(f"{type(module).__name__} has other norms of queries and keys than are known")
    weights: list[Any] = [getattr(norm, "weight", None) for norm in norms]
    if any(x is not None and x.dim() > 1 for x in weights):
        raise Unknown(f"{type(module).__name__} has norms with weights for each head")
    joint = any(x is not None and len(x) != dim for x in weights)
    sizes = (heads * dim, key_heads * dim) if joint else (dim, dim)
    fields = zip(("q_norm", "k_norm"), norms, held[0], sizes, strict=True)
    found = {field: finder.norm(norm, name, size) for field, norm, name, size in fields}
    return found | {"joint_norms": joint}


def _gates_of(finder: PartFinder, module: Any, dim: int, heads: int) -> dict[str, Any]:
    """The fields of gates that have a projection of their own."""
    name = next((n for n in GATES if getattr(module, n, None) is not None), None)
    if name is None:
        return {}
    functions = [function for function in GATE_FUNCTIONS if reads(module, function)]
    if len(functions) != 1:
        raise Unknown(f"{type(module).__name__} has gates that are not known")
    gates = getattr(module, name)
    count = int(gates.out_features)
    if count not in (heads, heads * dim):
        raise Unknown(f"{type(module).__name__} has {count} gates")
    described: Linear = finder.linear(gates, name, (count, finder.config.hidden_size))
    return {"gates": described, "gate_function": functions[0]}


def _temperature_of(finder: PartFinder, module: Any) -> tuple[float, float] | None:
    if not reads(module, "get_llama_4_attn_scale"):
        return None
    rope = finder.config.rope_parameters
    growth = rope.get("llama_4_scaling_beta")
    span = rope.get("original_max_position_embeddings")
    if growth is None or not span:
        raise Unknown(f"{type(module).__name__} does not say how scores grow with positions")
    return float(growth), float(span)


def _window_of(finder: PartFinder, module: Any) -> int | None:
    if reads(module, "is_sliding") and not module.is_sliding:
        return None
    of_config = getattr(finder.config, "sliding_window", None)
    return getattr(module, "sliding_window", of_config) or None


def rotation_of(finder: PartFinder, module: Any) -> Rotation | None:
    """That of this attention. None: it has none."""
    c = finder.config
    if getattr(c, "alibi", False):
        raise Unknown(f"{type(module).__name__} adds biases of positions to scores")
    windows = getattr(c, "sliding_window", None) is not None
    beside_windows = windows and _window_of(finder, module) is None
    forced = read_by(module, "force_rope", module)
    if finder.family.turns_windows and beside_windows and not forced:
        return None
    if read_by(module, "use_rope", module) in (0, False):
        return None
    bases = getattr(c, "layer_rope_theta", None)
    if bases is not None:
        return finder.rotations.get(bases[module.layer_idx])
    kind = getattr(module, "layer_type", getattr(module, "attention_type", None))
    types = getattr(c, "layer_types", None)
    if kind is None and types is not None:
        kind = types[module.layer_idx]
    return finder.rotations.get(None) or finder.rotations.get(kind)


def delta_net_of(finder: PartFinder, module: Any) -> DeltaNet:
    """The description of this gated delta net. Raises Unknown."""
    family = finder.family
    out, behind = first_of(OUTPUTS, module), first_of(("norm", "o_norm"), module)
    parts = {out, "conv1d", "dt_bias", "A_log", behind}
    inputs, read = _inputs_of(module)
    check(module, class_of(family, family.delta_net), parts | inputs, OF_DELTA_NET)
    check(module.conv1d, nn.Conv1d, {"weight"}, optional={"bias"})
    norm = getattr(module, behind)
    gated = class_of(family, family.gated_norm)
    check(norm, gated, {"weight"}, {"variance_epsilon", "activation"})
    if norm.activation != "silu":
        raise Unknown(f"{type(norm).__name__} has {norm.activation} of its gates")
    width = finder.config.hidden_size
    return DeltaNet(
        **read(finder, module),
        o=finder.linear(getattr(module, out), out, (width, module.value_dim)),
        convolution=module.conv1d,
        activation=module.activation,
        log_rate=module.A_log,
        step_bias=module.dt_bias,
        norm=Norm(norm, behind, (module.head_v_dim,), norm.variance_epsilon),
        key_heads=module.num_k_heads,
        key_dim=module.head_k_dim,
        value_heads=module.num_v_heads,
        value_dim=module.head_v_dim,
        beta_scale=2.0 if read_by(module, "allow_neg_eigval", module) else 1.0,
    )


def _inputs_of(module: Any) -> tuple[set[str], Callable[[PartFinder, Any], dict[str, Linear]]]:
    """The names of a delta net's projections, and what describes them."""
    if hasattr(module, "in_proj_qkvz"):
        return {"in_proj_qkvz", "in_proj_ba"}, _joined
    if hasattr(module, "in_proj_qkv"):
        return {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}, _apart
    return {*PROJECTIONS, "g_proj", "b_proj", "a_proj"}, _each_apart


def _each_apart(finder: PartFinder, module: Any) -> dict[str, Linear]:
    """The projections of a delta net whose queries, keys and values are apart, too."""
    width = finder.config.hidden_size
    keys, values, heads = module.key_dim, module.value_dim, module.num_v_heads
    sizes = dict(zip(PROJECTIONS, (keys, keys, values), strict=True))
    sizes |= {"g_proj": values, "b_proj": heads, "a_proj": heads}
    found = {n: finder.linear(getattr(module, n), n, (size, width)) for n, size in sizes.items()}
    qkv = finder.stacked([found[name] for name in PROJECTIONS], "qkv")
    return {"qkv": qkv, "z": found["g_proj"], "b": found["b_proj"], "a": found["a_proj"]}


def _apart(finder: PartFinder, module: Any) -> dict[str, Linear]:
    """The projections of a delta net that has a layer for each of them."""
    width = finder.config.hidden_size
    heads = module.num_v_heads
    sizes = {"qkv": module.conv_dim, "z": module.value_dim, "b": heads, "a": heads}
    return {
        field: finder.linear(getattr(module, f"in_proj_{field}"), f"in_proj_{field}", (size, width))
        for field, size in sizes.items()
    }


def _joined(finder: PartFinder, module: Any) -> dict[str, Linear]:
    """The projections of one that has two layers, each with every key head's part of all
    (Qwen3-Next).
    """
    keys, values, heads = module.key_dim, module.value_dim, module.num_v_heads
    groups = module.num_k_heads
    qkvz = {"q": keys, "k": keys, "v": values, "z": values}
    q, k, v, z = finder.rows(module.in_proj_qkvz, qkvz, groups)
    b, a = finder.rows(module.in_proj_ba, {"b": heads, "a": heads}, groups)
    return {"qkv": finder.stacked([q, k, v], "qkv"), "z": z, "b": b, "a": a}


def short_convolution_of(finder: PartFinder, module: Any) -> ShortConvolution:
    """The description of this short convolution. Raises Unknown."""
    family = finder.family
    cls = class_of(family, family.convolution)
    check(module, cls, {"in_proj", "conv", "out_proj"}, OF_CONVOLUTION)
    check(module.conv, nn.Conv1d, {"weight"}, optional={"bias"})
    width = finder.config.hidden_size
    return ShortConvolution(
        inputs=finder.linear(module.in_proj, "in_proj", (3 * width, width)),
        convolution=module.conv,
        o=finder.linear(module.out_proj, "out_proj", (width, width)),
    )


def mamba_of(finder: PartFinder, module: Any) -> MambaTwo:
    """The description of this Mamba-2 mixer. Raises Unknown."""
    family = finder.family
    cls = class_of(family, family.mamba)
    parts = {"in_proj", "conv1d", "act", "dt_bias", "A_log", "norm", "D", "out_proj"}
    check(module, cls, parts, OF_MAMBA)
    check(module.conv1d, nn.Conv1d, {"weight"}, optional={"bias"})
    inner, groups, states = module.intermediate_size, module.n_groups, module.ssm_state_size
    norm = module.norm
    check(norm, class_of(family, family.gated_norm), {"weight"}, {"variance_epsilon", "group_size"})
    width = finder.config.hidden_size
    outputs = 2 * inner + 2 * groups * states + module.num_heads
    low, high = module.time_step_limit
    return MambaTwo(
        inputs=finder.linear(module.in_proj, "in_proj", (outputs, width)),
        convolution=module.conv1d,
        activation=name_of(module.act),
        log_rate=module.A_log,
        step_bias=module.dt_bias,
        skip=module.D,
        limits=(float(low), float(high)),
        norm=Norm(norm, "norm", (inner,), norm.variance_epsilon),
        o=finder.linear(module.out_proj, "out_proj", (width, inner)),
        heads=module.num_heads,
        dim=module.head_dim,
        groups=groups,
        states=states,
        norm_groups=inner // getattr(norm, "group_size", inner),  # older versions have one group
    )


def rotations_of(body: Any, family: ModelFamily) -> dict[Any, Rotation]:
    """The rotation of each kind of layer, or of each base; that of None is the one of all."""
    if hasattr(body, "rotary_embs"):
        each = [_by_kind(module, family)[None] for module in body.rotary_embs]
        bases = [module.config.rope_parameters["rope_theta"] for module in body.rotary_embs]
        return dict(zip(bases, each, strict=True))
    names = ("rotary_emb", "pos_emb")
    module = next((m for n in names if (m := getattr(body, n, None)) is not None), None)
    return {} if module is None else _by_kind(module, family)


def _by_kind(module: Any, family: ModelFamily) -> dict[Any, Rotation]:
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
    frequencies: Tensor = getattr(module, f"{prefix}inv_freq")
    if frequencies.dim() != 1:
        raise Unknown(f"{type(module).__name__} has several rows of frequencies")
    scaling = getattr(module, f"{prefix}attention_scaling")
    if family.turns_back:
        frequencies = -frequencies
    woven = family.interleaved or getattr(module.config, "rope_interleave", False)
    return Rotation(kind, frequencies, scaling, woven)
