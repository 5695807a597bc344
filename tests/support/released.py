"""Released drafters in small: the names and shapes of their weights, random, and what they compute,
in plain steps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from longdraft.models.lm import LM

# tiny.BASE
D = 64
MLP = 96
H = 4
K = 2
HEAD = 16
V = 96
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
Weights = dict[str, Tensor]


def random(shapes: dict[str, tuple[int, ...]], seed: int = 3) -> Weights:
    """Matrices and biases around 0, norms around 1: each weighs enough to show where it is
    misplaced.
    """
    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=g)
        found[name] = 1 + 0.3 * drawn if name.endswith("norm.weight") else 0.2 * drawn
    return found


def attention(at: str, wide: int = D, biases: str = "") -> dict[str, tuple[int, ...]]:
    out = {"q": H * HEAD, "k": K * HEAD, "v": K * HEAD}
    found: dict[str, tuple[int, ...]] = {f"{at}.{p}_proj.weight": (n, wide) for p, n in out.items()}
    found |= {f"{at}.{p}_proj.bias": (out[p],) for p in biases}
    return found | {f"{at}.o_proj.weight": (D, H * HEAD)}


def mlp(at: str = "mlp") -> dict[str, tuple[int, ...]]:
    return {
        f"{at}.gate_proj.weight": (MLP, D),
        f"{at}.up_proj.weight": (MLP, D),
        f"{at}.down_proj.weight": (D, MLP),
    }


def glide(target: LM) -> tuple[Weights, dict]:
    norms = ("input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm")
    shapes = attention("self_attn", biases="qkv") | attention("cross_attn", biases="qkv") | mlp()
    return random(shapes | {f"{n}.weight": (D,) for n in norms}), {"model_type": "llama"}


def tokenswift(target: LM, count: int = 3) -> tuple[Weights, dict]:
    """The heads inside a copy of the target."""
    heads = {}
    for i in range(count):
        heads |= {f"model.medusa_layers.{i}.linear.weight": (D, D)}
        heads |= {f"model.medusa_layers.{i}.{n}_layernorm.weight": (D,) for n in ("input", "post")}
    return {k: v.clone() for k, v in target.hf.state_dict().items()} | random(heads), {
        "medusa_heads": count
    }


def medusa(target: LM, count: int = 4, own: bool = True, prefix: str = "") -> tuple[Weights, dict]:
    heads = {}
    for i in range(count):
        heads |= {f"{prefix}{i}.0.linear.weight": (D, D), f"{prefix}{i}.0.linear.bias": (D,)}
        heads |= {f"{prefix}{i}.1.weight": (V, D)} if own else {}
    # published configs say too few heads
    return random(heads), {
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
    }


def layer_config(**others) -> dict:
    c = {
        "hidden_size": D,
        "intermediate_size": MLP,
        "num_attention_heads": H,
        "num_key_value_heads": K,
    }
    return (
        c
        | {"hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": V, "rope_theta": 500.0}
        | others
    )


def eagle2(target: LM, bias: bool = True, biases: str = "") -> tuple[Weights, dict]:
    shapes = (
        attention("layers.0.self_attn", D, biases) | mlp("layers.0.mlp") | {"fc.weight": (D, 2 * D)}
    )
    shapes |= {"layers.0.post_attention_layernorm.weight": (D,)} | (
        {"fc.bias": (D,)} if bias else {}
    )
    return random(shapes) | {
        "embed_tokens.weight": target.hf.get_input_embeddings().weight.half()
    }, layer_config()


def eagle3(
    target: LM, at: str = "midlayer", known: int = 40, rope: dict | None = None
) -> tuple[Weights, dict]:
    shapes = attention(f"{at}.self_attn", 2 * D) | mlp(f"{at}.mlp")
    names = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    shapes |= {f"{at}.{n}.weight": (D,) for n in names} | {
        "norm.weight": (D,),
        "fc.weight": (D, 3 * D),
    }
    weights = random(shapes | {"lm_head.weight": (known, D)})
    if known < V:
        tokens = torch.randperm(V, generator=torch.Generator().manual_seed(1))[:known].sort().values
        weights |= {
            "d2t": tokens - torch.arange(known),
            "t2d": torch.zeros(V).index_fill(0, tokens, 1).bool(),
        }
    return weights, layer_config(rope_scaling=rope, draft_vocab_size=known)


def dflash(target: LM, kinds: tuple[str, ...] = ("full", "full"), **fields) -> tuple[Weights, dict]:
    """fields: of its config, beside those of every release."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (D, 2 * D),
        "hidden_norm.weight": (D,),
        "norm.weight": (D,),
    }
    for i in range(len(kinds)):
        at = f"layers.{i}"
        shapes |= attention(f"{at}.self_attn") | mlp(f"{at}.mlp")
        shapes |= {f"{at}.self_attn.{p}_norm.weight": (HEAD,) for p in "qk"}
        shapes |= {f"{at}.{n}_layernorm.weight": (D,) for n in ("input", "post_attention")}
    own = {"mask_token_id": V - 1, "target_layer_ids": [0, 1]}
    types = [f"{kind}_attention" for kind in kinds]
    config = layer_config(
        num_hidden_layers=len(kinds), head_dim=HEAD, block_size=5, layer_types=types
    )
    return random(shapes), config | {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": own,
    } | fields


def write(folder: Path, weights: Weights, config: dict, file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {k: v.detach().contiguous() for k, v in weights.items()}
    save_file(weights, folder / file) if file.endswith("safetensors") else torch.save(
        weights, folder / file
    )
    return folder


# What they compute --------------------------------------------------------------------------------


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))


def gated(w: Weights, at: str, x: Tensor) -> Tensor:
    return linear(
        w,
        f"{at}.down_proj",
        F.silu(linear(w, f"{at}.gate_proj", x)) * linear(w, f"{at}.up_proj", x),
    )


def turned(x: Tensor, frequency: Tensor) -> Tensor:
    """x [heads,N,D]: pairs (i, i + D/2) of the vector at position n turned by n * frequency[i]."""
    angle = torch.arange(x.shape[1])[:, None] * frequency
    a = x[..., : HEAD // 2]
    b = x[..., HEAD // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def frequency(theta: float, scaling: dict | None = None) -> Tensor:
    """Of each pair; Llama 3.1's scaling divides long wavelengths by a factor, and mixes between two
    bounds.
    """
    f = torch.tensor([theta ** (-2 * i / HEAD) for i in range(HEAD // 2)])
    if scaling:
        # in the length trained on
        turns = scaling["original_max_position_embeddings"] * f / (2 * math.pi)
        low = scaling["low_freq_factor"]
        high = scaling["high_freq_factor"]
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        f = keep * f + (1 - keep) * f / scaling["factor"]
    return f


def split(x: Tensor) -> Tensor:
    """[N,heads*D] -> [heads,N,D]."""
    return x.view(len(x), -1, HEAD).transpose(0, 1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [H,N,D], k, v [K,S,D], mask [N,S] -> [N,H*D]."""
    k, v = (x.repeat_interleave(H // K, 0) for x in (k, v))
    weights = (q @ k.mT / HEAD**0.5).masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(q.shape[1], -1)


def dflash_layer(
    w: Weights, at: str, x: Tensor, context: Tensor, f: Tensor, eps: float, mask: Tensor
) -> Tensor:
    """A layer over a block x [N,d] that attends to context [S,d], in front of it, and to itself."""
    read = norm(x, w[f"{at}.input_layernorm.weight"], eps)
    S = len(context)
    both = torch.cat([context, read])
    q, k, v = (split(linear(w, f"{at}.self_attn.{p}_proj", both)) for p in "qkv")
    q, k = (norm(y, w[f"{at}.self_attn.{p}_norm.weight"], eps) for p, y in (("q", q), ("k", k)))
    x = x + linear(w, f"{at}.self_attn.o_proj", attend(turned(q, f)[:, S:], turned(k, f), v, mask))
    return x + gated(w, f"{at}.mlp", norm(x, w[f"{at}.post_attention_layernorm.weight"], eps))


def layer(w: Weights, at: str, residual: Tensor, read: Tensor, f: Tensor, eps: float) -> Tensor:
    """One decoder layer over a whole text [N,d] whose attention reads `read` [N,wide]."""
    q, k, v = (split(linear(w, f"{at}.self_attn.{p}_proj", read)) for p in "qkv")
    causal = torch.ones(len(read), len(read)).tril().bool()
    x = residual + linear(
        w, f"{at}.self_attn.o_proj", attend(turned(q, f), turned(k, f), v, causal)
    )
    return x + gated(w, f"{at}.mlp", norm(x, w[f"{at}.post_attention_layernorm.weight"], eps))
