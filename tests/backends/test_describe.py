"""Layers are described whole: from a description alone follows what Transformers computes, and what
no description covers is refused.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest
import tiny_models
import torch
from support import tiny
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from longdraft.backends import native
from longdraft.backends.cuda.static_pass import Fusible
from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    ExpertsMLP,
    GatedMLP,
    Linear,
    Norm,
    SharedLatent,
)
from longdraft.backends.describe import describe, described
from longdraft.backends.described_fields import unread
from longdraft.backends.features.windows import windows_of
from longdraft.backends.known_modules import Unknown
from longdraft.backends.native import layers
from longdraft.backends.quantize import quantize
from longdraft.costs.counts import _products, _products_of_modules
from longdraft.families import GEMMA2
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import weights_of
from longdraft.ops.native import library

NATIVE = pytest.mark.skipif(library() is None, reason="built without a C++ compiler")
DENSE = ["llama", "qwen2", "qwen3", "mistral-window", "qwen3-mixed", "llama-mqa"]
DENSE += [name for name in tiny.DESCRIBED if name not in tiny.EXPERTS]
GATED = "qwen3.5 without recurrent layers"
SPARSE = ["qwen3-moe", "gpt-oss", *tiny.EXPERTS]


def stock(name: str) -> Any:
    if name == "gemma2-softcap" and not hasattr(GEMMA2.modeling, GEMMA2.scaled_embeddings[0]):
        pytest.skip("this version of Transformers scales embeddings elsewhere")
    if name != GATED and name not in tiny.CONFIGS:
        pytest.skip("this version of Transformers lacks it")
    if name != GATED:
        return tiny.stock(name)
    config = deepcopy(tiny.CONFIGS["qwen3.5"])
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config).eval()
    for weights in hf.parameters():
        nn.init.normal_(weights, std=0.25)
    return hf


# The computation that a description stands for ---------------------------------------------------


def projected(linear: Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.module.weight, linear.module.bias)


def normed(norm: Norm | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    bias = getattr(norm.module, "bias", None)
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
    scaled = scaled * (getattr(norm.module, "weight", torch.ones(())) + norm.plus_one)
    return scaled if bias is None else scaled + bias


def rotated(attention: Attention, x: Tensor) -> Tensor:
    """x [T,heads,numbers]"""
    rotation = attention.rotation
    if rotation is None:
        return x
    angles = (torch.arange(len(x))[:, None] * rotation.frequencies)[:, None].repeat(1, 1, 2)
    turned, rest = x.split([rotation.size, x.shape[-1] - rotation.size], -1)
    if rotation.interleaved:
        angles = angles[..., : len(rotation.frequencies)].repeat_interleave(2, -1)
        across = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
    else:
        left, right = turned.chunk(2, -1)
        across = torch.cat([-right, left], -1)
    turned = turned * angles.cos() * rotation.scaling + across * angles.sin() * rotation.scaling
    return torch.cat([turned, rest], -1)


def expanded(a: Attention, latent: SharedLatent, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of all heads [T,heads,numbers], rotated."""
    count = len(x)
    narrow = x if latent.q_down is None else normed(latent.q_norm, projected(latent.q_down, x))
    q = projected(a.q, narrow).view(count, a.heads, -1)
    plain, turned = q.split([latent.plain, latent.rotated], -1)
    shared, beside = projected(a.k, x).split([latent.rank, latent.rotated], -1)
    rows = projected(latent.expand, normed(latent.norm, shared)).view(count, a.heads, -1)
    k, v = rows.split([latent.plain, latent.value], -1)
    beside = rotated(a, beside[:, None]).expand(-1, a.heads, -1)
    return torch.cat([plain, rotated(a, turned)], -1), torch.cat([k, beside], -1), v


def attended(a: Attention, x: Tensor) -> Tensor:
    if a.latent is None:
        q, k, v, gates = of_heads(a, x)
    else:
        (q, k, v), gates = expanded(a, a.latent, x), None
    count = len(x)
    apart = torch.arange(count)[:, None] - torch.arange(count)
    seen = (apart >= 0) & (apart < (a.window or count))
    if a.temperature is not None:
        growth, span = a.temperature
        position = torch.arange(count)
        q = q * (1 + growth * torch.log(1 + (position // span)))[:, None, None]
    scores = capped(torch.einsum("ihd,jhd->hij", q, k) * a.scale, a.cap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if a.sinks is not None:
        scores = torch.cat([scores, a.sinks[:, None, None].expand(-1, count, 1)], -1)
    weights = scores.softmax(-1)[..., :count]
    out = torch.einsum("hij,jhd->ihd", weights, v)
    out = out if gates is None else out * gates.sigmoid()
    if a.gates is not None:
        opened = {"sigmoid": torch.sigmoid, "softplus": F.softplus}[a.gate_function]
        out = out * opened(projected(a.gates, x)).view(count, a.heads, -1)
    return projected(a.o, out.flatten(1))


def of_heads(a: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values and gates of all heads [T,heads,dim]."""
    count = len(x)
    q = projected(a.q, x).view(count, a.heads, -1)
    q, gates = q.chunk(2, -1) if a.gated else (q, None)
    k, v = (projected(p, x).view(count, a.key_heads, a.dim) for p in (a.k, a.v))
    if a.joint_norms:
        q = normed(a.q_norm, q.flatten(1)).view_as(q)
        k = normed(a.k_norm, k.flatten(1)).view_as(k)
    if a.limit is not None:
        q, k, v = (part.clamp(-a.limit, a.limit) for part in (q, k, v))
    if not a.joint_norms:
        q, k = (q, k) if a.late_norms else (normed(a.q_norm, q), normed(a.k_norm, k))
    q, k = rotated(a, q), rotated(a, k)
    if a.late_norms:
        q, k = normed(a.q_norm, q), normed(a.k_norm, k)
    k, v = (p.repeat_interleave(a.heads // a.key_heads, 1) for p in (k, v))
    return q, k, v, gates


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else cap * (x / cap).tanh()


ACTIVATIONS = {
    "silu": F.silu,
    "GELUTanh": lambda x: F.gelu(x, approximate="tanh"),
    "NewGELUActivation": lambda x: F.gelu(x, approximate="tanh"),
    "GELUActivation": F.gelu,
    "ReLU": F.relu,
    "ReLUSquaredActivation": lambda x: F.relu(x).square(),
}


def xielu(x: Tensor, positive: float, negative: float, linear: float) -> Tensor:
    low = x.clamp(max=0)
    return torch.where(x > 0, positive * x * x, negative * (low.expm1() - x)) + linear * x


def through(mlp: GatedMLP | ExpertsMLP, x: Tensor) -> Tensor:
    if isinstance(mlp, ExpertsMLP):
        return torch.stack([of_experts(mlp, row) for row in x])
    if mlp.slopes is not None:
        return projected(mlp.down, xielu(projected(mlp.up, x), *mlp.slopes))
    activation = ACTIVATIONS[mlp.activation]
    if mlp.gate is None:
        return projected(mlp.down, activation(projected(mlp.up, x)))
    gate = activation(projected(mlp.gate, x))
    return projected(mlp.down, gate * projected(mlp.up, x))


def of_experts(mlp: ExpertsMLP, x: Tensor) -> Tensor:
    """x [width] of one node"""
    scores = F.linear(x, mlp.router, mlp.router_bias)
    shares = scores.softmax(-1) if mlp.scoring == "softmax" else scores.sigmoid()
    choice = scores if mlp.corrects_scores else shares
    choice = choice if mlp.correction is None else choice + mlp.correction
    if mlp.groups > 1:
        groups = choice.view(mlp.groups, -1)
        kept = groups.topk(mlp.group_bests).values.sum(-1).topk(mlp.chosen_groups).indices
        out = torch.ones(mlp.groups, dtype=torch.bool).index_fill(0, kept, False)
        choice = groups.masked_fill(out[:, None], float("-inf")).flatten()
    best = choice.topk(mlp.chosen).indices
    chosen = shares[best] / (shares[best].sum() if mlp.normalized else 1) * mlp.share_scale
    outputs = [share * of_expert(mlp, int(n), x) for n, share in zip(best, chosen, strict=True)]
    if mlp.shared is None:
        return torch.stack(outputs).sum(0)
    beside = through(mlp.shared, x[None])[0] * mlp.shared_scale
    if mlp.shared_gate is not None:
        beside = projected(mlp.shared_gate, x).sigmoid() * beside
    return torch.stack([*outputs, beside]).sum(0)


def of_expert(mlp: ExpertsMLP, n: int, x: Tensor) -> Tensor:
    apart = isinstance(mlp.gate_up, tuple)
    gate_up = torch.cat([x[n] for x in mlp.gate_up]) if apart else mlp.gate_up[n]
    down = mlp.down[n]
    if mlp.transposed:
        gate_up, down = gate_up.T, down.T
    both = F.linear(x, gate_up, mlp.gate_up_bias[n] if mlp.gate_up_bias is not None else None)
    gate, up = (both[::2], both[1::2]) if mlp.interleaved else both.chunk(2)
    if mlp.activation == "clamped":
        gate = gate.clamp(max=mlp.limit)
        inner = gate * (mlp.slope * gate).sigmoid() * (up.clamp(-mlp.limit, mlp.limit) + 1)
    else:
        inner = ACTIVATIONS[mlp.activation](gate) * up
    return F.linear(inner, down, mlp.down_bias[n] if mlp.down_bias is not None else None)


def after(layer: DecoderLayer, x: Tensor) -> Tensor:
    assert isinstance(layer.mixer, Attention)
    read = normed(layer.input_norm, x)
    mixed = attended(layer.mixer, read)
    if layer.parallel:
        read = read if layer.mlp_norm is None else normed(layer.mlp_norm, x)
        return x + layer.residual_scale * (mixed + through(layer.mlp, read))
    x = x + layer.residual_scale * normed(layer.mixer_output_norm, mixed)
    y = through(layer.mlp, normed(layer.mlp_norm, x))
    return x + layer.residual_scale * normed(layer.mlp_output_norm, y)


def logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    x = decoder.embedding.module.weight[tokens] * decoder.embedding_scale
    if decoder.positions is not None:
        first = decoder.first_position
        x = x + decoder.positions.module.weight[first : first + len(tokens)]
    x = normed(decoder.embedding_norm, x)
    for layer in decoder.layers:
        x = after(layer, x)
    x = projected(decoder.head, normed(decoder.norm, x)) / decoder.logit_divisor
    return capped(x, decoder.logit_cap)


TOKENS = torch.tensor(tiny.prompts(40)[0])


@torch.inference_mode()
@pytest.mark.parametrize("name", [*DENSE, GATED, *SPARSE])
def test_a_description_says_all_that_transformers_computes(name):
    hf = stock(name)
    torch.testing.assert_close(
        logits(describe(hf), TOKENS),
        hf(input_ids=TOKENS[None]).logits[0],
        rtol=1e-3,
        atol=1e-3,
    )


FAULTS = {  # the model, and what its attention or norms are said to be
    "no window": ("mistral-window", lambda d: with_attention(d, window=None)),
    "another scale": ("llama", lambda d: with_attention(d, scale=0.3)),
    "no norm of keys": ("qwen3", lambda d: with_attention(d, k_norm=None)),
    "no rotation of a part": (GATED, lambda d: with_attention(d, rotation=twice(d))),
    "weights without one": (GATED, lambda d: replace(d, norm=replace(d.norm, plus_one=False))),
    "norms before the rotation": (
        "hunyuan-moe",
        lambda d: with_attention(d, late_norms=False),
    ),
    "another limit": ("dbrx", lambda d: with_attention(d, limit=0.5)),
    "shares of all experts": ("dbrx", lambda d: with_mlp(d, normalized=False)),
    "up before gates": ("dbrx", lambda d: turned(d)),
    "no sinks": ("gpt-oss", lambda d: with_attention(d, sinks=None)),
    "another slope": ("gpt-oss", lambda d: with_mlp(d, slope=1.0)),
    "no limit": ("gpt-oss", lambda d: with_mlp(d, limit=99.0)),
    "gates before the rest": ("gpt-oss", lambda d: with_mlp(d, interleaved=False)),
    "one expert": ("mixtral", lambda d: with_mlp(d, chosen=1)),
    "other shares": ("qwen3-moe", lambda d: with_mlp(d, normalized=True)),
    "another scoring": ("minimax-m2", lambda d: with_mlp(d, scoring="softmax")),
    "no correction": ("minimax-m2", lambda d: with_mlp(d, correction=None)),
    "no positions": ("gpt2", lambda d: replace(d, positions=None)),
    "positions from another row on": ("opt", lambda d: replace(d, first_position=0)),
    "no norm of latents": ("youtu", lambda d: with_latent(d, norm=None)),
    "queries that are not narrowed": ("youtu", lambda d: with_latent(d, q_norm=None)),
    "rotated numbers of latents in halves": (
        "youtu",
        lambda d: with_attention(d, rotation=replace(d.rotation, interleaved=False)),
    ),
    "two best of a group": ("deepseek-v2-groups", lambda d: with_mlp(d, group_bests=2)),
    "shares that are divided": ("deepseek-v2", lambda d: with_mlp(d, normalized=True)),
    "no norm behind experts": ("axk1", lambda d: changed(d, mlp_output_norm=None)),
    "no groups": ("glm4-moe", lambda d: with_mlp(d, groups=1)),
    "another scale of shares": ("glm4-moe", lambda d: with_mlp(d, share_scale=1.0)),
    "no shared expert": ("ernie-moe", lambda d: with_mlp(d, shared=None)),
    "no gate of a shared expert": ("qwen2-moe", lambda d: with_mlp(d, shared_gate=None)),
    "norms without the mean": ("cohere", lambda d: with_norms(d, kind="rms")),
    "an MLP behind attention": ("cohere2", lambda d: changed(d, parallel=False)),
    "weights of norms without one": ("nemotron", lambda d: with_norms(d, plus_one=False)),
    "a limit of nothing": ("olmo", lambda d: with_attention(d, limit=0.1)),
    "no gates": ("afmoe", lambda d: with_attention(d, gates=None)),
    "another gate": ("laguna", lambda d: with_attention(d, gate_function="sigmoid")),
    "no temperature": ("ministral3", lambda d: with_attention(d, temperature=None)),
    "other slopes": ("apertus", lambda d: with_mlp(d, slopes=(0.8, 0.8, 0.5))),
    "corrected shares": ("kolibri1", lambda d: with_mlp(d, corrects_scores=False)),
    "a sum of experts": ("cohere2-moe", lambda d: with_mlp(d, shared_scale=1.0)),
    "no norm of embeddings": ("nanochat", lambda d: replace(d, embedding_norm=None)),
    "no norm of an MLP beside attention": ("gpt-neox", lambda d: changed(d, mlp_norm=None)),
    "no cap": ("gemma2-softcap", lambda d: with_attention(d, cap=None)),
    "no cap of logits": ("gemma2-softcap", lambda d: replace(d, logit_cap=None)),
    "no norm behind attention": ("gemma2-softcap", lambda d: changed(d, mixer_output_norm=None)),
    "no norm behind the MLP": ("gemma2-softcap", lambda d: changed(d, mlp_output_norm=None)),
    "embeddings of another scale": (
        "gemma2-softcap",
        lambda d: replace(d, embedding_scale=1.0),
    ),
    "residuals of scale 1": ("granite", lambda d: changed(d, residual_scale=1.0)),
    "a multiplier of embeddings": ("granite", lambda d: replace(d, embedding_scale=1.0)),
    "logits without a divisor": ("granite", lambda d: replace(d, logit_divisor=1.0)),
}


def changed(decoder: Decoder, **changes: Any) -> Decoder:
    return replace(decoder, layers=tuple(replace(layer, **changes) for layer in decoder.layers))


def with_mlp(decoder: Decoder, **changes: Any) -> Decoder:
    made = (
        replace(layer, mlp=replace(layer.mlp, **changes))
        if changes.keys() <= {field.name for field in fields(layer.mlp)}
        else layer
        for layer in decoder.layers
    )
    return replace(decoder, layers=tuple(made))


def with_norms(decoder: Decoder, **changes: Any) -> Decoder:
    made = (
        replace(layer, input_norm=replace(layer.input_norm, **changes)) for layer in decoder.layers
    )
    return replace(decoder, layers=tuple(made))


def with_attention(decoder: Decoder, **changes: Any) -> Decoder:
    made = (replace(layer, mixer=replace(layer.mixer, **changes)) for layer in decoder.layers)
    return replace(decoder, layers=tuple(made))


def with_latent(decoder: Decoder, **changes: Any) -> Decoder:
    made = (
        replace(layer, mixer=replace(layer.mixer, latent=replace(layer.mixer.latent, **changes)))
        for layer in decoder.layers
    )
    return replace(decoder, layers=tuple(made))


def turned(decoder: Decoder) -> Decoder:
    return with_mlp(decoder, gate_up=decoder.layers[0].mlp.gate_up[::-1])


def twice(decoder: Decoder) -> Any:
    rotation = decoder.rotation
    return replace(rotation, frequencies=rotation.frequencies.repeat(2))


@torch.inference_mode()
@pytest.mark.parametrize("fault", FAULTS)
def test_a_field_that_is_wrong_shows(fault):
    name, change = FAULTS[fault]
    hf = stock(name)
    wanted = hf(input_ids=TOKENS[None]).logits[0]
    assert not torch.allclose(logits(change(describe(hf)), TOKENS), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", [*DENSE, "qwen3.5", *SPARSE])
def test_sizes_are_those_of_the_modules(name):
    decoder = describe(stock(name))
    parts = [decoder.embedding, decoder.head, decoder.norm]
    parts += [part for layer in decoder.layers for part in (*layer.linears, *layer.norms)]
    weighed = [part for part in parts if hasattr(part.module, "weight")]
    assert all(tuple(part.module.weight.shape) == part.shape for part in weighed)
    assert len(weighed) == len(parts) or name in ("nanochat", "olmo")


# What is refused ---------------------------------------------------------------------------------


def attention(hf: Any) -> Any:
    return hf.model.layers[1].self_attn


PLANTED = {
    "a module": lambda m: m.model.layers[1].add_module("adapter", nn.Identity()),
    "a weight": lambda m: attention(m).register_parameter("sinks", nn.Parameter(torch.ones(4))),
    "a buffer": lambda m: m.model.layers[1].mlp.register_buffer("limit", torch.ones(1)),
    "an attribute": lambda m: setattr(attention(m), "softcap", 5.0),
    "an attribute of a norm": lambda m: setattr(m.model.norm, "offset", 1.0),
    "an attribute of a linear layer": lambda m: setattr(attention(m).v_proj, "gain", 2.0),
    "an attribute of the rotation": lambda m: setattr(m.model.rotary_emb, "extra", 2.0),
    "a value": lambda m: setattr(attention(m), "is_causal", False),
    "another norm": lambda m: setattr(m.model, "norm", nn.RMSNorm(64)),
    "a missing part": lambda m: delattr(m.model.layers[1].mlp, "up_proj"),
    "a missing norm of keys": lambda m: setattr(attention(m), "k_norm", None),
    "a second norm of queries": lambda m: attention(m).add_module("q_layernorm", nn.Identity()),
    "an embedding's limit": lambda m: setattr(m.model.embed_tokens, "max_norm", 1.0),
    "a hook": lambda m: m.lm_head.register_forward_hook(lambda module, args, out: 2 * out),
    "another forward": lambda m: setattr(m.model.layers[0], "forward", lambda x: x),
    "a part of the model": lambda m: m.model.add_module("head", nn.Identity()),
    "a number of the model": lambda m: setattr(m.model, "multiplier", 2.0),
    "a number of the head": lambda m: setattr(m, "logit_scale", 2.0),
    "another family's multiplier": lambda m: setattr(m.model, "embedding_multiplier", 2.0),
    "another family's residuals": lambda m: setattr(m.model.layers[1], "residual_multiplier", 2.0),
    "another family's cap": lambda m: setattr(attention(m), "attn_logit_softcapping", 5.0),
    "experts": lambda m: setattr(m.model.layers[1], "mlp", stock("qwen3-moe").model.layers[1].mlp),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_no_description_covers_is_refused(what):
    hf = tiny.stock("qwen3")
    assert layers.computes(hf, {})
    PLANTED[what](hf)
    assert not layers.computes(hf, {}) and not native.fits(hf, {})


def test_other_families_are_unknown():
    hf = tiny_models.build(tiny_models.config("bloom"))
    assert described(hf) is None
    with pytest.raises(Unknown, match="is of no family"):
        describe(hf)


def test_shares_divided_by_another_norm_are_refused():
    hf = stock("dbrx")
    hf.transformer.blocks[1].ffn.moe_normalize_expert_weights = 2.0
    with pytest.raises(Unknown, match="norm of power 2"):
        describe(hf)


def test_what_extends_embeddings_is_of_the_family():
    hf = stock("phi4-multimodal")
    hf.model.embed_tokens_extend = nn.Identity()
    with pytest.raises(Unknown, match="Identity"):
        describe(hf)


def test_a_hybrid_may_have_no_recurrent_layers():
    hf = tiny.stock("lfm2", layer_types=["full_attention"] * 3)
    assert not describe(hf).recurrent and layers.computes(hf, {})


def test_norms_of_each_head_are_refused():
    with pytest.raises(Unknown, match="StableLmLayerNormPerHead"):
        describe(tiny.stock("stablelm", qk_layernorm=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"alibi": True}, "biases of positions"),
        (
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            "other numbers of heads",
        ),
    ],
)
def test_other_attention_of_the_same_class_is_refused(changes, why):
    with pytest.raises(Unknown, match=why):
        describe(tiny.stock("falcon", **changes))


def test_packed_projections_that_are_apart_are_not_joined():
    hf = stock("olmo-hybrid")
    quantize(hf, "int4")
    with pytest.raises(Unknown, match="packed projections are not stacked"):
        describe(hf)


def test_key_heads_are_those_of_the_module():
    """A configuration that is saved and read again may have DBRX's default in their place."""
    hf = stock("dbrx")
    hf.config.num_key_value_heads = 1
    assert {a.key_heads for a in describe(hf).attentions} == {2}


def test_every_field_is_read():
    assert all({f.name for f in fields(kind)} == names for kind, names in layers.READ.items())


def test_a_field_that_the_kernels_do_not_read_is_refused(monkeypatch):
    window = tiny.stock("mistral-window")
    seen = windows_of(window.config)
    assert layers.computes(window, seen) and not layers.computes(window, {})
    left = {**layers.READ, Attention: layers.READ[Attention] - {"window"}}
    monkeypatch.setattr(layers, "READ", left)
    assert not layers.computes(window, seen) and layers.computes(tiny.stock("llama"), {})
    assert unread(describe(window).layers[0], left) == ["window"]
    del left[Norm]
    assert "Norm" in unread(describe(tiny.stock("llama")).layers[0], left)


def test_the_kernels_read_fields_that_there_are():
    for kind, names in layers.READ.items():
        assert names <= {field.name for field in fields(kind)}


def test_what_differs_by_layer_is_refused():
    for change in (
        lambda m: setattr(m.model.layers[1].input_layernorm, "variance_epsilon", 1e-3),
        lambda m: setattr(m.model.layers[1].self_attn, "scaling", 0.5),
        lambda m: setattr(m.model.layers[1].mlp, "act_fn", nn.GELU()),
    ):
        hf = tiny.stock("qwen3")
        change(hf)
        assert described(hf) is not None and not layers.computes(hf, {})


# What reads descriptions beside the kernels ------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3.5", *SPARSE])
def test_products_are_those_of_all_modules(name):
    hf = stock(name)
    weights = weights_of(LM(hf))
    assert bool(weights.experts) == (name in SPARSE)
    assert _products(hf, weights) == _products_of_modules(hf, weights)


def test_what_a_gpu_fuses():
    hf = tiny.stock("qwen3")
    count = len(hf.model.layers)
    parts = Fusible.of(hf)
    assert (len(parts.norms), len(parts.gated), len(parts.rotating)) == (4 * count + 1, count, 1)
    hf.model.layers[0].mlp.act_fn = nn.ReLU()
    hf.model.layers[0].input_layernorm.forward = lambda x: 2 * x
    hf.model.norm.offset = 1.0
    hf.model.layers[1].mlp.limit = nn.Parameter(torch.ones(1))
    hf.model.layers[1].post_attention_layernorm.register_buffer("offset", torch.ones(1))
    parts = Fusible.of(hf)
    assert (len(parts.norms), len(parts.gated)) == (4 * count - 2, count - 2)
    nothing = Fusible.of(tiny.stock("gemma3"))
    assert not nothing.norms and not nothing.gated and not nothing.rotating
