"""Writes GGUF files of tiny models of many architectures, with their tensors changed as converters
change them, for test_gguf_architectures.py and test_gguf_hybrids.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from support import gguf_files as files
from support import tiny
from support.gguf_files import ARRAY, BOOL, F32, I32, U32, logits, ours
from torch import Tensor

# Names in files, as converters write them; others are those of a Llama.
BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LFM = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    **{f"conv.{n}": f"shortconv.{n}" for n in ("conv", "in_proj", "out_proj")},
}
NAMES: dict[str, dict[str, str]] = {
    "granite": {},
    "smollm3": {},
    "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
    "olmo2": BEHIND,
    "exaone4": BEHIND,
    "gemma2": BEHIND | {"pre_feedforward_layernorm": "ffn_norm"},
    "ernie4_5": {},
    "command-r": {},
    "cohere2": {},
    "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "qwen2moe": {
        **{f"mlp.shared_expert.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")},
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    },
    "olmoe": {},
    "glm4moe": {
        **{f"mlp.shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")},
        "post_attention_layernorm": "post_attention_norm",
    },
    "lfm2": LFM,
    "lfm2moe": LFM
    | {f"feed_forward.experts.{n}": f"ffn_{n}_exps" for n in ("gate", "up", "down")}
    | {"feed_forward.gate": "ffn_gate_inp"},
    "glm4": {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    },
}
SHARED = {f"mlp.shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}
GRANITE = {f"block_sparse_moe.experts.{n}": f"ffn_{n}_exps" for n in ("gate", "up", "down")}
GRANITE |= {
    "block_sparse_moe.router": "ffn_gate_inp",
    "shared_mlp.gate": "ffn_gate_shexp",
    "shared_mlp.up": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
MAMBA = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "out_proj": "ssm_out", "norm": "ssm_norm"}
MAMBA |= {"dt_bias": "ssm_dt", "A_log": "ssm_a", "D": "ssm_d"}
DELTA_NET = {f"linear_attn.{part}": name for part, name in MAMBA.items()}
DELTA_NET |= {"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate"}
DELTA_NET |= {"linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha"}
DELTA_NET |= {"linear_attn.in_proj_ba": "ssm_ba"}
DELTA_NET |= {"post_attention_layernorm": "post_attention_norm"}
LATENT = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.k_b": "attn_k_b",
    "self_attn.v_b": "attn_v_b",
    "self_attn.kv_b_proj": "attn_kv_b",
}
QUERY_NORMS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
NAMES |= {
    "dots1": SHARED,
    "ernie4_5-moe": SHARED,
    "minimax-m2": {},
    "hunyuan-dense": QUERY_NORMS,
    "hunyuan-moe": QUERY_NORMS
    | {f"mlp.shared_mlp.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}
    | {"mlp.gate.wg": "ffn_gate_inp"},
    "nemotron": {},
    "mistral3": {},
    "olmo2 with windows": BEHIND,
    "llama with experts": {},
    "granitemoe": GRANITE,
    "granitemoe with an MLP for all": GRANITE,
    "granitehybrid": GRANITE | {f"mamba.{part}": name for part, name in MAMBA.items()},
    "granitehybrid without experts": {
        "shared_mlp.gate": "ffn_gate",
        "shared_mlp.up": "ffn_up",
        "shared_mlp.output_linear": "ffn_down",
        **{f"mamba.{part}": name for part, name in MAMBA.items()},
    },
    "nemotron_h": {
        "norm": "attn_norm",
        "mixer.o_proj": "attn_output",
        **{f"mixer.{n}_proj": f"attn_{n}" for n in "qkv"},
        **{f"mixer.{n}_proj": f"ffn_{n}" for n in ("up", "down")},
        **{f"mixer.{part}": name for part, name in MAMBA.items()},
    },
    "nemotron_h_moe": {},
    "qwen3next": DELTA_NET
    | {f"mlp.shared_expert.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}
    | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp"},
    "qwen35": DELTA_NET,
    "qwen35moe": DELTA_NET
    | {f"mlp.shared_expert.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}
    | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp"},
    "deepseek2": LATENT | SHARED,
    "deepseek2 of V2": LATENT | SHARED,
    "deepseek2 without experts": LATENT,
    "minicpm3": LATENT,
}
NAMES["nemotron_h_moe"] = NAMES["nemotron_h"] | {
    **{f"mixer.experts.{n}": f"ffn_{n}_exps" for n in ("up", "down")},
    **{f"mixer.shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("up", "down")},
    "mixer.gate": "ffn_gate_inp",
}
TURNED = {"granite", "smollm3", "mistral3", "llama", "granitemoe", "granitehybrid"}
PLUS_ONE = {"gemma2", "nemotron", "qwen3next", "qwen35", "qwen35moe"}
TINY = {  # names of tiny models that differ
    "seed_oss": "seed-oss",
    "gemma2": "gemma2-softcap",
    "ernie4_5": "ernie",
    "command-r": "cohere",
    "qwen2moe": "qwen2-moe",
    "glm4moe": "glm4-moe",
    "lfm2moe": "lfm2-moe",
    "ernie4_5-moe": "ernie-moe",
    "hunyuan-dense": "hunyuan",
    "mistral3": "ministral3",
    "olmo2 with windows": "olmo3",
    "llama with experts": "mixtral",
    "granitemoe": "granite-moe",
    "granitemoe with an MLP for all": "granite-shared",
    "granitehybrid": "granite-hybrid",
    "granitehybrid without experts": "granite-hybrid-dense",
    "nemotron_h": "nemotron-h",
    "nemotron_h_moe": "nemotron-h",
    "qwen3next": "qwen3-next",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.5-moe",
    "deepseek2": "deepseek-v3",
    "deepseek2 of V2": "deepseek-v2",
    "deepseek2 without experts": "youtu",
}
KINDS = [kind for kind in NAMES if TINY.get(kind, kind) in tiny.CONFIGS]


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# Files do not say which layers do not rotate: every fourth.
FOUR = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
CHANGES = {
    "smollm3": FOUR | {"no_rope_layers": [1, 1, 1, 0]},
    "qwen2moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "glm4moe": {"n_group": 1, "topk_group": 1, "rope_parameters": ROPE},
    "dots1": {"n_group": 1, "topk_group": 1, "sliding_window": None}
    | {"layer_types": ["full_attention"] * 3},
    # files do not say what every file's model has
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "nemotron_h": {"num_hidden_layers": 4}
    | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    "nemotron_h_moe": {"num_hidden_layers": 4, "n_group": 1, "topk_group": 1}
    | {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
}


def stock(kind: str, **sizes: Any) -> Any:
    """A tiny model, whose norms differ."""
    changes = {"vocab_size": files.VOCAB, **CHANGES.get(kind, {}), **sizes}
    hf = tiny.stock(TINY.get(kind, kind), **changes)
    for name, p in hf.named_parameters():
        if p.dim() == 1 and name.endswith("norm.weight"):
            torch.nn.init.normal_(p, mean=1.0, std=0.2)  # those of equal weights show no order
    return hf


def windows(config: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def hf_mlp(config: Any) -> int:
    """How many numbers an MLP of an LFM2 has inside, which its config computes."""
    if not getattr(config, "block_auto_adjust_ff_dim", False):
        return config.intermediate_size
    each = config.block_multiple_of
    return each * -(-int(2 * config.intermediate_size / 3) // each)


def metadata(kind: str, config: Any) -> dict[str, tuple[int, Any]]:
    """What a file of this architecture says beside sizes."""
    c = config
    match kind:
        case "granite":
            return {
                "granite.attention.scale": (F32, c.attention_multiplier),
                "granite.embedding_scale": (F32, c.embedding_multiplier),
                "granite.residual_scale": (F32, c.residual_multiplier),
                "granite.logit_scale": (F32, c.logits_scaling),
            }
        case "exaone4":
            return {
                "exaone4.attention.sliding_window": (U32, c.sliding_window),
                "exaone4.attention.sliding_window_pattern": (ARRAY, (BOOL, windows(c))),
            }
        case "gemma2":
            return {
                "gemma2.attention.sliding_window": (U32, c.sliding_window),
                "gemma2.attn_logit_softcapping": (F32, c.attn_logit_softcapping),
                "gemma2.final_logit_softcapping": (F32, c.final_logit_softcapping),
            }
        case "command-r" | "cohere2" | "starcoder2":
            eps = c.norm_epsilon if kind == "starcoder2" else c.layer_norm_eps
            made = {f"{kind}.attention.layer_norm_epsilon": (F32, eps)}
            if kind != "starcoder2":
                made[f"{kind}.logit_scale"] = (F32, c.logit_scale)
            if kind != "command-r":
                made[f"{kind}.attention.sliding_window"] = (U32, c.sliding_window)
            if kind == "cohere2":
                made["cohere2.attention.sliding_window_pattern"] = (ARRAY, (BOOL, windows(c)))
            return made
        case "qwen2moe":
            shared = c.shared_expert_intermediate_size
            return {"qwen2moe.expert_shared_feed_forward_length": (U32, shared)}
        case "glm4moe":
            return {
                "glm4moe.rope.dimension_count": (U32, c.head_dim // 2),
                "glm4moe.expert_count": (U32, c.n_routed_experts),
                "glm4moe.expert_used_count": (U32, c.num_experts_per_tok),
                "glm4moe.expert_feed_forward_length": (U32, c.moe_intermediate_size),
                "glm4moe.expert_shared_count": (U32, c.n_shared_experts),
                "glm4moe.leading_dense_block_count": (U32, c.first_k_dense_replace),
                "glm4moe.expert_gating_func": (U32, 2),
                "glm4moe.expert_weights_norm": (BOOL, c.norm_topk_prob),
                "glm4moe.expert_weights_scale": (F32, c.routed_scaling_factor),
            }
        case "lfm2" | "lfm2moe":
            keys = [c.num_key_value_heads * (t == "full_attention") for t in c.layer_types]
            made = {
                f"{kind}.attention.head_count_kv": (ARRAY, (I32, keys)),
                f"{kind}.attention.layer_norm_rms_epsilon": (F32, c.norm_eps),
                f"{kind}.shortconv.l_cache": (U32, c.conv_L_cache),
                f"{kind}.feed_forward_length": (U32, hf_mlp(c)),
            }
            if kind == "lfm2moe":
                made["lfm2moe.leading_dense_block_count"] = (U32, c.num_dense_layers)
                made["lfm2moe.expert_gating_func"] = (U32, 2)
            return made
        case "glm4":
            return {"glm4.rope.dimension_count": (U32, c.head_dim // 2)}
        case "minimax-m2" | "nemotron":
            made: dict[str, tuple[int, Any]] = {f"{kind}.rope.dimension_count": (U32, rotated(c))}
            if kind == "nemotron":
                return made | {"nemotron.attention.layer_norm_epsilon": (F32, c.norm_eps)}
            return made | experts(kind, c) | {"minimax-m2.expert_gating_func": (U32, 2)}
        case "mistral3":
            return {
                "mistral3.attention.temperature_scale": (F32, 0.5),
                "mistral3.rope.scaling.original_context_length": (U32, 8),
            }
        case "olmo2 with windows":
            return {
                "olmo2.attention.sliding_window": (U32, c.sliding_window),
                "olmo2.attention.sliding_window_pattern": (ARRAY, (BOOL, windows(c))),
            }
        case "llama with experts" | "granitemoe":
            scales = {} if kind != "granitemoe" else metadata("granite", c)
            scales = {key.replace("granite.", "granitemoe."): x for key, x in scales.items()}
            return scales | experts(kind.split()[0], c)
    return more_metadata(kind, c)


def rotated(config: Any) -> int:
    """How many numbers of a head are rotated."""
    return int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))


def experts(kind: str, config: Any) -> dict[str, tuple[int, Any]]:
    """How many there are, and how many numbers are inside one."""
    c = config
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    count = next(n for name in names if (n := getattr(c, name, None)))
    inner = getattr(c, "moe_intermediate_size", None) or c.intermediate_size
    return {
        f"{kind}.expert_count": (U32, count),
        f"{kind}.expert_used_count": (U32, c.num_experts_per_tok),
        f"{kind}.expert_feed_forward_length": (U32, inner),
    }


def routed(kind: str, config: Any, gating: int) -> dict[str, tuple[int, Any]]:
    """The metadata of experts that are chosen as DeepSeek chooses them."""
    c = config
    return experts(kind, c) | {
        f"{kind}.expert_shared_count": (U32, c.n_shared_experts),
        f"{kind}.leading_dense_block_count": (U32, c.first_k_dense_replace),
        f"{kind}.expert_gating_func": (U32, gating),
        f"{kind}.expert_weights_norm": (BOOL, bool(c.norm_topk_prob)),
        f"{kind}.expert_weights_scale": (F32, float(c.routed_scaling_factor)),
    }


def states(kind: str, heads: int, groups: int, state: int, inner: int) -> dict[str, Any]:
    """Sizes of recurrent layers."""
    return {
        f"{kind}.ssm.conv_kernel": (U32, 4),
        f"{kind}.ssm.state_size": (U32, state),
        f"{kind}.ssm.group_count": (U32, groups),
        f"{kind}.ssm.inner_size": (U32, inner),
        f"{kind}.ssm.time_step_rank": (U32, heads),
    }


def key_heads(config: Any) -> tuple[int, Any]:
    """Of each layer: recurrent ones and MLPs have none."""
    types = config.layer_types
    keys = [config.num_key_value_heads * (t == "full_attention") for t in types]
    return ARRAY, (I32, keys)


def more_metadata(kind: str, config: Any) -> dict[str, tuple[int, Any]]:
    """The same of models with recurrent layers, latents or experts."""
    c = config
    name = kind.split()[0]
    match name:
        case "granitemoe" | "granitehybrid":
            made = metadata("granite", c)
            made = {key.replace("granite.", f"{name}."): x for key, x in made.items()}
            if c.num_local_experts:
                shared = (U32, c.shared_intermediate_size)
                made |= experts(name, c) | {f"{name}.expert_shared_feed_forward_length": shared}
            else:
                made[f"{name}.feed_forward_length"] = (U32, c.shared_intermediate_size)
            if name == "granitehybrid":
                inner = c.mamba_n_heads * c.mamba_d_head
                made |= states(name, c.mamba_n_heads, c.mamba_n_groups, c.mamba_d_state, inner)
                rotates = c.position_embedding_type == "rope"
                made[f"{name}.rope.scaling.finetuned"] = (BOOL, rotates)
                made[f"{name}.attention.head_count_kv"] = key_heads(c)
            return made
        case "nemotron_h" | "nemotron_h_moe":
            inner = c.mamba_num_heads * c.mamba_head_dim
            sizes = {"mlp": c.intermediate_size, "moe": c.moe_intermediate_size}
            mlps = [sizes.get(t, 0) for t in c.layer_types]
            made = states(name, c.mamba_num_heads, c.n_groups, c.ssm_state_size, inner) | {
                f"{name}.attention.head_count_kv": key_heads(c),
                f"{name}.feed_forward_length": (ARRAY, (I32, mlps)),
                f"{name}.attention.layer_norm_epsilon": (F32, c.layer_norm_epsilon),
                f"{name}.rope.dimension_count": (U32, c.head_dim - 2),  # as released files say
            }
            if name == "nemotron_h":
                return made
            return (
                made
                | experts(name, c)
                | {
                    f"{name}.expert_shared_count": (U32, c.n_shared_experts),
                    f"{name}.expert_shared_feed_forward_length": (
                        U32,
                        c.moe_shared_expert_intermediate_size,
                    ),
                    f"{name}.expert_weights_norm": (BOOL, c.norm_topk_prob),
                    f"{name}.expert_weights_scale": (F32, c.routed_scaling_factor),
                    f"{name}.expert_group_count": (U32, c.n_group),
                }
            )
        case "qwen3next" | "qwen35" | "qwen35moe":
            heads = c.linear_num_value_heads
            inner = heads * c.linear_value_head_dim
            shared: dict[str, tuple[int, Any]] = {}
            if name != "qwen35":
                size = (U32, c.shared_expert_intermediate_size)
                shared = {f"{name}.expert_shared_feed_forward_length": size}
            if name != "qwen3next":
                shared[f"{name}.rope.dimension_sections"] = (ARRAY, (I32, [1, 1, 0, 0]))
            dims = states(name, heads, c.linear_num_key_heads, c.linear_key_head_dim, inner)
            return dims | shared | {f"{name}.rope.dimension_count": (U32, c.head_dim // 4)}
        case "deepseek2":
            made = latents(name, c) | {
                "deepseek2.attention.head_count_kv": (U32, 1),
                "deepseek2.attention.key_length": (U32, c.kv_lora_rank + c.qk_rope_head_dim),
                "deepseek2.attention.value_length": (U32, c.kv_lora_rank),
                "deepseek2.attention.key_length_mla": (U32, c.qk_head_dim),
                "deepseek2.attention.value_length_mla": (U32, c.v_head_dim),
            }
            if not hasattr(c, "n_routed_experts"):
                return made | {
                    "deepseek2.leading_dense_block_count": (U32, c.num_hidden_layers),
                    "deepseek2.expert_feed_forward_length": (U32, c.intermediate_size),
                    "deepseek2.expert_shared_count": (U32, 0),
                }
            if c.n_group and c.n_group > 1:
                made["deepseek2.expert_group_count"] = (U32, c.n_group)
                made["deepseek2.expert_group_used_count"] = (U32, c.topk_group)
            return made | routed(name, c, 1 if kind.endswith("V2") else 2)
        case "minicpm3":
            return latents(name, c) | {"minicpm3.attention.key_length": (U32, c.qk_head_dim)}
        case "dots1":
            return routed(name, c, 2)
        case "ernie4_5-moe":
            return experts(name, c) | {
                "ernie4_5-moe.expert_shared_count": (U32, c.moe_num_shared_experts),
                "ernie4_5-moe.expert_shared_feed_forward_length": (
                    U32,
                    c.moe_num_shared_experts * c.moe_intermediate_size,
                ),
                "ernie4_5-moe.leading_dense_block_count": (U32, c.moe_layer_start_index),
                "ernie4_5-moe.interleave_moe_layer_step": (U32, 1),
            }
        case "hunyuan-moe":
            return {
                "hunyuan-moe.expert_count": (U32, c.num_experts),
                "hunyuan-moe.expert_used_count": (U32, c.moe_topk),
                "hunyuan-moe.expert_feed_forward_length": (U32, c.intermediate_size),
                "hunyuan-moe.expert_shared_feed_forward_length": (U32, c.intermediate_size),
                "hunyuan-moe.expert_shared_count": (U32, 1),
            }
    return {}


def latents(kind: str, config: Any) -> dict[str, tuple[int, Any]]:
    c = config
    rank = {f"{kind}.attention.q_lora_rank": (U32, c.q_lora_rank)} if c.q_lora_rank else {}
    return rank | {
        f"{kind}.attention.kv_lora_rank": (U32, c.kv_lora_rank),
        f"{kind}.rope.dimension_count": (U32, c.qk_rope_head_dim),
    }


# matrices that converters leave in F32, or whose rows here are too short
STAY_PLAIN = ("ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "shortconv.conv")
STAY_PLAIN += ("attn_k_b", "attn_v_b")
MAMBA_2 = ("granitehybrid", "nemotron_h", "nemotron_h_moe")
CORRECTIONS = ("e_score_correction_bias", "expert_bias")


def weights(hf: Any) -> Any:
    """(name, numbers) of parameters, and of corrections under their names in files."""
    for name, x in files.parameters(hf):
        if name.endswith(CORRECTIONS):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", x.flatten()
        else:
            yield name, x
    for name, x in hf.named_buffers():
        if name.endswith(CORRECTIONS):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", x


def turned(x: Tensor, heads: int, dim: int) -> Tensor:
    """Rows whose rotated pairs lie beside each other."""
    return x.view(heads, 2, dim // 2, -1).transpose(1, 2).reshape(x.shape)


def tiled(x: Tensor, keys: int, size: int, dim: int = 0) -> Tensor:
    """Value heads of `size` numbers: the first of each key head, then the second of each."""
    parts = x.transpose(0, dim)
    moved = parts.unflatten(0, (keys, -1, size)).transpose(0, 1).flatten(0, 2)
    return moved.transpose(0, dim).contiguous()


def delta_net(kind: str, c: Any, name: str, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Part of a gated delta net: Qwen 3-Next's projections are put in the order of Qwen 3.5's, in
    whose files value heads are tiled.
    """
    keys, key, value = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "in_proj_qkvz":
        each = [key, key, *[c.linear_num_value_heads // keys * value] * 2]
        *qkv, z = x.unflatten(0, (keys, -1)).split(each, 1)
        base = name.removesuffix("qkvz.weight")
        yield f"{base}qkv.weight", torch.cat([y.flatten(0, 1) for y in qkv])
        yield f"{base}z.weight", z.flatten(0, 1)
        return
    if kind != "qwen3next":
        first = 2 * keys * key
        match part:
            case "in_proj_qkv" | "conv1d":
                x = torch.cat([x[:first], tiled(x[first:], keys, value)])
            case "in_proj_z":
                x = tiled(x, keys, value)
            case "in_proj_a" | "in_proj_b" | "A_log" | "dt_bias":
                x = tiled(x, keys, 1)
            case "out_proj":
                x = tiled(x, keys, value, 1)
    yield name, x


def converted(kind: str, c: Any, name: str, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a converter makes of a parameter, under the names of modules."""
    if name.endswith("shared_mlp.input_linear.weight"):
        base = name.removesuffix("input_linear.weight")
        for part, half in zip(("gate", "up"), x.chunk(2), strict=True):
            yield f"{base}{part}.weight", half
    elif kind == "deepseek2" and name.endswith("kv_b_proj.weight"):
        sizes = [c.qk_nope_head_dim, c.v_head_dim]
        keys, values = x.unflatten(0, (c.num_attention_heads, -1)).split(sizes, 1)
        base = name.removesuffix("kv_b_proj.weight")
        yield f"{base}k_b.weight", keys.mT.contiguous()
        yield f"{base}v_b.weight", values.contiguous()
    elif ".linear_attn." in name:
        yield from delta_net(kind, c, name, x)
    elif kind in TURNED and name.endswith(("q_proj.weight", "k_proj.weight")):
        of_queries = name.endswith("q_proj.weight")
        heads = c.num_attention_heads if of_queries else c.num_key_value_heads
        dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        yield name, turned(x, heads, dim)
    else:
        yield name, x


def tensors_of(kind: str, hf: Any) -> dict[str, Tensor]:
    """The tensors of a file, in its shapes."""
    arch = kind.split()[0]
    c = hf.config
    parts = files.PARTS | NAMES[kind]
    found = dict[str, Tensor]()
    for name, whole in weights(hf):
        for full, x in converted(arch, c, name, whole) if name[:4] != "blk." else [(name, whole)]:
            stored, part = full, full
            if not full.startswith("blk."):
                part = f"{full}.weight" if full.endswith(("A_log", ".D")) else full
                part = part.replace(".dt_bias", ".dt_bias.bias")
                part = part.replace("model.norm_f", "model.norm")
                stored = files.name_of(part, parts)
            if stored.endswith(("ssm_a.weight", "ssm_d.weight")):
                stored = stored.removesuffix(".weight")
                x = (-x.exp() if stored.endswith("ssm_a") else x)[:, None]
                x = x if arch in MAMBA_2 else x.squeeze(1)
            if stored.endswith("ssm_norm.weight") and arch in MAMBA_2:
                x = x.view(2, -1)  # of two groups
            if x.dim() > 1 and ("conv" in stored or "shexp" in stored):
                x = x.squeeze(1).squeeze(0)
            is_norm = x.dim() == 1 and stored.endswith("norm.weight")
            if arch in PLUS_ONE and is_norm and "ssm_" not in stored:
                x = x + 1
            found[stored] = x
    return found


def saved(
    folder: Any,
    kind: str,
    hf: Any,
    more: dict[str, Tensor] | None = None,
    packed: str | None = None,
    words: bool = True,
    **changes: tuple[int, Any],
) -> Any:
    """A file of this model; changes: of its metadata, with __ for a dot. more: tensors beside the
    model's. packed: matrices are random blocks of this type instead.
    """
    arch = kind.split()[0]
    tensors = {}
    for name, x in (tensors_of(kind, hf) | (more or {})).items():
        shape = tuple(x.shape)
        if packed and x.dim() > 1 and not any(part in name for part in STAY_PLAIN):
            scale = 0.0004 if files.SIZES[packed][0] == 256 else 0.002
            tensors[name] = (packed, shape, files.blocks(packed, shape, len(tensors), scale))
        else:
            tensors[name] = ("F32", shape, files.plain("F32", x))
    known = files.sizes(hf.config, arch) | (files.tokenizer() if words else {})
    known |= metadata(kind, hf.config)
    known |= {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return files.write(folder / "model.gguf", known, tensors)


def difference(folder: Any, kind: str, **changes: Any) -> float:
    hf = stock(kind)
    return float((ours(saved(folder, kind, hf, **changes)) - logits(hf)).abs().max())
