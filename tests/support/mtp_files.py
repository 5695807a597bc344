"""Tiny checkpoints with MTP layers, under the names that families of models have in their
releases.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support import tiny
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Glm4MoeConfig,
    MellumConfig,
    MiMoV2FlashConfig,
    Qwen2Config,
    Qwen3NextConfig,
)
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

BODY = tiny.BASE["num_hidden_layers"]
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
TYPES = ["full_attention", "sliding_attention", "full_attention"]
LISTS = ("layer_types", "mlp_layer_types")


@dataclass
class Family:
    """How a family writes MTP layer i (from 0).

    own: the names of norm_token, norm_feature, fuse, norm_out; at: where the decoder layer's
    weights are.
    """

    config: Callable[[int], Any]  # of a body of BODY layers with so many MTP layers behind it
    at: Callable[[int], str]
    own: Callable[[int], list[str]]
    inner: Callable[[str], str] = lambda name: name
    hidden_first: bool = False
    raw: bool = False  # reads the target's states before its final norm
    window: int | None = None
    centered: bool = False  # a norm's weights are stored as their difference from 1


def _base(count: int, **options: Any) -> dict[str, Any]:
    return tiny.BASE | {"num_hidden_layers": BODY + count} | options


def _deepseek(count: int) -> Any:
    config = deepcopy(tiny.CONFIGS["deepseek"])
    config.num_hidden_layers = BODY + count
    return config


def _behind(names: str) -> Callable[[int], list[str]]:
    return lambda i: [f"model.layers.{BODY + i}.{name}.weight" for name in names.split()]


def _mellum(count: int) -> Any:
    options = EXPERTS | {
        "num_experts": 4,
        "sliding_window": 8,
        "layer_types": TYPES + ["sliding_attention"] * count,
    }
    return MellumConfig(**_base(count), **options)


def _mimo_v2(count: int) -> Any:
    types = TYPES + ["sliding_attention"] * count
    mlps = ["dense"] + ["sparse"] * (BODY - 1) + ["dense"] * count
    options = EXPERTS | {"n_routed_experts": 4, "v_head_dim": 12, "sliding_window": 8}
    return MiMoV2FlashConfig(
        **_base(count, num_key_value_heads=1), **options, layer_types=types, mlp_layer_types=mlps
    )


def _glm(count: int) -> Any:
    return Glm4MoeConfig(
        **_base(count), **EXPERTS, n_routed_experts=4, first_k_dense_replace=1, use_qk_norm=True
    )


# the last layer of the body has no keys
HYBRID = [
    "linear_attention",
    "full_attention",
    "linear_attention",
]
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def _qwen3_next(count: int) -> Any:
    options = EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 32}
    return Qwen3NextConfig(
        **_base(count), **options, **LINEAR, layer_types=HYBRID + ["full_attention"] * count
    )


def _qwen3_5(count: int) -> Any:
    return Qwen3_5TextConfig(
        **_base(count, head_dim=16), **LINEAR, layer_types=HYBRID + ["full_attention"] * count
    )


def _qwen(config: Callable[[int], Any]) -> Family:
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    return Family(
        config,
        lambda i: f"mtp.layers.{i}.",
        lambda i: [f"mtp.{n}.weight" for n in names],
        centered=True,
    )


NEXTN = partial(
    Family,
    at=lambda i: f"model.layers.{BODY + i}.",
    own=_behind("enorm hnorm eh_proj shared_head.norm"),
)
FAMILIES = {
    "deepseek_v3": NEXTN(_deepseek),
    "glm4_moe": NEXTN(_glm),
    "mellum": Family(
        _mellum,
        at=lambda i: f"mtp.layers.{i}.",
        own=lambda i: [
            f"mtp.{n}.weight" for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        ],
        window=8,
    ),
    "qwen3_next": _qwen(_qwen3_next),
    "qwen3_5": _qwen(_qwen3_5),
    "mimo_v2_flash": Family(
        _mimo_v2,
        at=lambda i: f"model.mtp.layers.{i}.",
        own=lambda i: [
            f"model.mtp.layers.{i}.{n}.weight"
            for n in ("enorm", "hnorm", "eh_proj", "final_layernorm")
        ],
        inner=lambda name: name.replace("post_attention_layernorm", "pre_mlp_layernorm"),
        window=8,
    ),
    "mimo": Family(
        lambda count: Qwen2Config(**_base(count)),
        at=lambda i: f"model.mtp_layers.{i}.",
        own=lambda i: [
            f"model.mtp_layers.{i}.{n}.weight"
            for n in ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        ],
        hidden_first=True,
        raw=True,
    ),
}


@dataclass
class Made:
    """A checkpoint's folder, the longer model whose last layers are its MTP layers, and what joins
    them to the body.
    """

    folder: Path
    donor: Any
    joints: list[list[Tensor]]


def write(folder: Path, family: str, count: int = 1) -> Made:
    """A model of BODY + count layers, saved by Transformers; then its last layers are named as MTP
    layers.
    """
    made = FAMILIES[family]
    config = FAMILIES[family].config(count)
    torch.manual_seed(1)
    donor = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, p in donor.named_parameters():
        if p.dim() > 1 or name.endswith("sinks"):
            torch.nn.init.normal_(p, std=tiny.STD.get(name.split(".")[-2], 0.25))
        elif "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
    donor.save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    d = config.hidden_size
    scale = lambda: torch.rand(d) + 0.5  # noqa: E731
    joints = [[scale(), scale(), torch.randn(d, 2 * d) / 8, scale()] for _ in range(count)]
    for i, joint in enumerate(joints):
        old = f"model.layers.{BODY + i}."
        for name in [n for n in weights if n.startswith(old)]:
            weights[made.at(i) + made.inner(name.removeprefix(old))] = weights.pop(name)
        weights |= dict(zip(made.own(i), joint, strict=True))
        weights[f"{made.at(i)}embed_tokens.weight"] = torch.zeros(96, d)  # a copy, to be left alone
    save_file(weights, file, {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"num_hidden_layers": BODY, "num_nextn_predict_layers": count} | {
        k: settings[k][:BODY] for k in LISTS if settings.get(k)
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return Made(folder, donor, joints)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@torch.inference_mode()
def plain_layer(made: Made, family: str, i: int, features: Tensor, tokens: Tensor) -> Tensor:
    """The output [N,d] of MTP layer i for pairs i, i+1, ... of features [N,d] with tokens [N]: no
    cache, no ring.
    """
    facts = FAMILIES[family]
    config = made.donor.config
    body = made.donor.model
    (norm_token, norm_feature, fuse, norm_out), eps = made.joints[i], config.rms_norm_eps
    norm_token, norm_feature, norm_out = (
        w + facts.centered for w in (norm_token, norm_feature, norm_out)
    )
    parts = [
        normed(body.embed_tokens(tokens), norm_token, eps),
        normed(features, norm_feature, eps),
    ]
    x = (torch.cat(parts[::-1] if facts.hidden_first else parts, -1) @ fuse.T)[None]
    place = torch.arange(len(tokens))[None] + 1 + i
    behind = place[0, :, None] - place[0]
    seen = (behind >= 0) & (behind < (facts.window or 1 << 20))
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]
    kind = ("sliding_attention",) if facts.window else ()
    by_grid = hasattr(body.rotary_emb, "mrope_section")
    rotation = body.rotary_emb(x, place.expand(3, -1, -1) if by_grid else place, *kind)
    out = body.layers[BODY + i](
        x, attention_mask=mask, position_ids=place, position_embeddings=rotation
    )
    return normed(out[0], norm_out, eps)
