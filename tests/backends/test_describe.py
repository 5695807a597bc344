"""Layers are described whole: from a description alone follows what Transformers computes, and what
no description covers is refused.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest
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
    Linear,
    Norm,
    unread,
)
from longdraft.backends.describe import Unknown, describe, described
from longdraft.backends.features.windows import windows_of
from longdraft.backends.native import layers
from longdraft.costs.counts import _products, _products_of_modules
from longdraft.models.memory_traffic import Weights
from longdraft.ops.native import library

NATIVE = pytest.mark.skipif(library() is None, reason="built without a C++ compiler")
DENSE = ["llama", "qwen2", "qwen3", "mistral-window", "qwen3-mixed", "llama-mqa"]
GATED = "qwen3.5 without recurrent layers"


def stock(name: str) -> Any:
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
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
    return scaled * (norm.module.weight + norm.plus_one)


def rotated(attention: Attention, x: Tensor) -> Tensor:
    """x [T,heads,dim]"""
    rotation = attention.rotation
    assert rotation is not None
    angles = (torch.arange(len(x))[:, None] * rotation.frequencies)[:, None].repeat(1, 1, 2)
    turned, rest = x.split([rotation.size, attention.dim - rotation.size], -1)
    left, right = turned.chunk(2, -1)
    across = torch.cat([-right, left], -1)
    turned = turned * angles.cos() * rotation.scaling + across * angles.sin() * rotation.scaling
    return torch.cat([turned, rest], -1)


def attended(a: Attention, x: Tensor) -> Tensor:
    count = len(x)
    q = projected(a.q, x).view(count, a.heads, -1)
    q, gates = q.chunk(2, -1) if a.gated else (q, None)
    k, v = (projected(p, x).view(count, a.key_heads, a.dim) for p in (a.k, a.v))
    q = rotated(a, normed(a.q_norm, q))
    k = rotated(a, normed(a.k_norm, k))
    k, v = (p.repeat_interleave(a.heads // a.key_heads, 1) for p in (k, v))
    apart = torch.arange(count)[:, None] - torch.arange(count)
    seen = (apart >= 0) & (apart < (a.window or count))
    scores = torch.einsum("ihd,jhd->hij", q, k) * a.scale
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out = torch.einsum("hij,jhd->ihd", weights, v)
    out = out if gates is None else out * gates.sigmoid()
    return projected(a.o, out.flatten(1))


def after(layer: DecoderLayer, x: Tensor) -> Tensor:
    mlp = layer.mlp
    assert isinstance(layer.mixer, Attention) and mlp.activation == "silu"
    x = x + attended(layer.mixer, normed(layer.input_norm, x))
    y = normed(layer.mlp_norm, x)
    return x + projected(mlp.down, F.silu(projected(mlp.gate, y)) * projected(mlp.up, y))


def logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    x = decoder.embedding.module.weight[tokens]
    for layer in decoder.layers:
        x = after(layer, x)
    return projected(decoder.head, normed(decoder.norm, x))


TOKENS = torch.tensor(tiny.prompts(40)[0])


@torch.inference_mode()
@pytest.mark.parametrize("name", [*DENSE, GATED])
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
}


def with_attention(decoder: Decoder, **changes: Any) -> Decoder:
    made = (replace(layer, mixer=replace(layer.mixer, **changes)) for layer in decoder.layers)
    return replace(decoder, layers=tuple(made))


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


@pytest.mark.parametrize("name", [*DENSE, "qwen3.5"])
def test_sizes_are_those_of_the_modules(name):
    decoder = describe(stock(name))
    parts = [decoder.embedding, decoder.head, decoder.norm]
    parts += [part for layer in decoder.layers for part in (*layer.linears, *layer.norms)]
    assert all(tuple(part.module.weight.shape) == part.shape for part in parts)


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
    "an embedding's limit": lambda m: setattr(m.model.embed_tokens, "max_norm", 1.0),
    "a hook": lambda m: m.lm_head.register_forward_hook(lambda module, args, out: 2 * out),
    "another forward": lambda m: setattr(m.model.layers[0], "forward", lambda x: x),
    "a part of the model": lambda m: m.model.add_module("head", nn.Identity()),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_no_description_covers_is_refused(what):
    hf = tiny.stock("qwen3")
    assert layers.computes(hf, {})
    PLANTED[what](hf)
    assert not layers.computes(hf, {}) and not native.fits(hf, {})


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-moe", "gemma3", "gemma2-softcap", "phi3"])
def test_other_families_are_unknown(name):
    assert described(tiny.stock(name)) is None
    with pytest.raises(Unknown, match="is of no family"):
        describe(tiny.stock(name))


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


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3.5"])
def test_products_are_those_of_all_modules(name):
    hf = stock(name)
    assert _products(hf, Weights(0)) == _products_of_modules(hf, Weights(0))


def test_what_a_gpu_fuses():
    hf = tiny.stock("qwen3")
    count = len(hf.model.layers)
    parts = Fusible.of(hf)
    assert (len(parts.norms), len(parts.gated), len(parts.rotating)) == (4 * count + 1, count, 1)
    hf.model.layers[0].mlp.act_fn = nn.ReLU()
    hf.model.layers[0].input_layernorm.forward = lambda x: 2 * x
    hf.model.norm.offset = 1.0
    parts = Fusible.of(hf)
    assert (len(parts.norms), len(parts.gated)) == (4 * count - 1, count - 1)
    nothing = Fusible.of(tiny.stock("gemma3"))
    assert not nothing.norms and not nothing.gated and not nothing.rotating
