"""GGUF files of architectures that differ from a Llama by names, norms, scales or windows: a tiny
model's logits are those of Transformers, and each thing that a file says matters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import gguf_files as files
from support import tiny
from support.gguf_files import ARRAY, BOOL, F32, I32, STRING, U32, logits, ours

from longdraft import InputError, load
from longdraft.models.gguf import architectures
from longdraft.models.gguf import model as gguf_model

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
TURNED = {"granite", "smollm3"}  # rows of queries and keys
TINY = {"seed_oss": "seed-oss", "gemma2": "gemma2-softcap", "ernie4_5": "ernie"}
TINY |= {"command-r": "cohere", "qwen2moe": "qwen2-moe", "glm4moe": "glm4-moe"}
TINY |= {"lfm2moe": "lfm2-moe"}  # names of tiny models that differ
KINDS = [kind for kind in NAMES if TINY.get(kind, kind) in tiny.CONFIGS]


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# Files do not say which layers do not rotate: every fourth.
FOUR = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
CHANGES = {
    "smollm3": FOUR | {"no_rope_layers": [1, 1, 1, 0]},
    "qwen2moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "glm4moe": {"n_group": 1, "topk_group": 1, "rope_parameters": ROPE},
}


def stock(kind: str) -> Any:
    changes = {"vocab_size": files.VOCAB, **CHANGES.get(kind, {})}
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
    return {}


def weights(hf: Any) -> Any:
    """(name, numbers) of parameters, and of corrections under their names in files."""
    yield from files.parameters(hf)
    for name, x in hf.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", x


def saved(folder: Any, kind: str, hf: Any, **changes: tuple[int, Any]) -> Any:
    c = hf.config
    parts = files.PARTS | NAMES[kind]
    tensors = {}
    for name, x in weights(hf):
        stored = name if name.startswith("blk.") else files.name_of(name, parts)
        if kind in TURNED and (".attn_q." in stored or ".attn_k." in stored):
            heads = c.num_attention_heads if ".attn_q." in stored else c.num_key_value_heads
            x = x.view(heads, 2, c.head_dim // 2, -1).transpose(1, 2).reshape(x.shape)
        if ".shortconv.conv." in stored or "shexp" in stored:
            x = x.squeeze(1).squeeze(0)
        if kind == "gemma2" and x.dim() == 1:
            x = x + 1
        tensors[stored] = ("F32", tuple(x.shape), files.plain("F32", x))
    known = files.sizes(c, kind) | files.tokenizer() | metadata(kind, c)
    known |= {f"{kind}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return files.write(folder / "model.gguf", known, tensors)


def difference(folder: Any, kind: str, **changes: tuple[int, Any]) -> float:
    hf = stock(kind)
    return float((ours(saved(folder, kind, hf, **changes)) - logits(hf)).abs().max())


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_the_model_it_was_made_from(tmp_path, kind):
    assert difference(tmp_path, kind) < 1e-4


# A key of the metadata, and a value that is not the model's.
OTHER = {
    ("granite", "attention__scale"): (F32, 1.0),
    ("granite", "embedding_scale"): (F32, 1.0),
    ("granite", "residual_scale"): (F32, 1.0),
    ("granite", "logit_scale"): (F32, 1.0),
    ("exaone4", "attention__sliding_window"): (U32, 9),
    ("exaone4", "attention__sliding_window_pattern"): (ARRAY, (BOOL, [False, True, True])),
    ("gemma2", "attention__sliding_window"): (U32, 9),
    ("gemma2", "attn_logit_softcapping"): (F32, 1.0),
    ("gemma2", "final_logit_softcapping"): (F32, 1.0),
    ("glm4", "rope__dimension_count"): (U32, 4),
    ("command-r", "logit_scale"): (F32, 1.0),
    ("cohere2", "attention__sliding_window"): (U32, 9),
    ("cohere2", "attention__layer_norm_epsilon"): (F32, 0.5),
    ("starcoder2", "attention__sliding_window"): (U32, 9),
    ("phi3", "rope__dimension_count"): (U32, 8),
    ("qwen2moe", "expert_used_count"): (U32, 1),
    ("qwen2moe", "expert_weights_norm"): (BOOL, True),
    ("olmoe", "expert_used_count"): (U32, 1),
    ("glm4moe", "expert_weights_norm"): (BOOL, False),
    ("glm4moe", "expert_weights_scale"): (F32, 1.0),
    ("lfm2", "attention__layer_norm_rms_epsilon"): (F32, 0.5),
    ("olmo2", "attention__layer_norm_rms_epsilon"): (F32, 0.5),
    ("seed_oss", "rope__freq_base"): (F32, 100.0),
    ("smollm3", "rope__freq_base"): (F32, 100.0),
}


@torch.inference_mode(False)
@pytest.mark.parametrize(("kind", "key"), OTHER)
def test_each_number_matters(tmp_path, kind, key):
    if kind in KINDS:
        assert difference(tmp_path, kind, **{key: OTHER[kind, key]}) > 1e-3


# What a row of the table could forget.
FORGOTTEN = {
    "the order of rows": ("granite", {"turned": False}),
    "an order that is none": ("olmo2", {"turned": True}),
    "norms plus one": ("gemma2", {"minus_one": False}),
}


@torch.inference_mode(False)
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_change_that_is_not_undone_is_noticed(tmp_path, what, monkeypatch):
    kind, changes = FORGOTTEN[what]
    row = replace(architectures.ARCHITECTURES[kind], **changes)
    monkeypatch.setattr(gguf_model, "ARCHITECTURES", {kind: row})
    assert difference(tmp_path, kind) > 1e-3


@torch.inference_mode(False)
@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        ("granite", "residual_scale", (F32, -1.0), "residual_scale is -1"),
        ("gemma2", "attention__sliding_window", (U32, 0), "no sliding window"),
        (
            "exaone4",
            "attention__sliding_window_pattern",
            (ARRAY, (BOOL, [True])),
            "1 entries for 3",
        ),
        ("olmo2", "attention__sliding_window", (U32, 8), "sliding window"),
        ("glm4", "rope__dimension_count", (U32, 64), "rotates 64 of 16"),
        ("granite", "rope__scaling__type", (STRING, "longrope"), "rope scaling"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, kind, key, value, why):
    path = saved(tmp_path, kind, stock(kind), **{key: value})
    with pytest.raises(InputError, match=why):
        load(path)


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", KINDS)
def test_files_run_in_the_kernels(tmp_path, kind):
    lm, _ = load(saved(tmp_path, kind, stock(kind)), "float32")
    assert (
        lm.backend.name in ("native", "eager")
        and lm.config.model_type == stock(kind).config.model_type
    )
