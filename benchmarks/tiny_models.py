"""Tiny random models of every language model in Transformers, from default configs.

A configuration keeps its architecture's flags and shape of layers; numbers that are sizes become
small. Each kind of layer that the default pattern has occurs at least once.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from longdraft.models.classes import class_of
from longdraft.models.multimodal import towers_are_optional

CAUSAL = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MULTIMODAL = tuple(
    kind for kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if kind not in CAUSAL
)
KINDS = CAUSAL + MULTIMODAL
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD = 16
WIDTH = 64
VOCAB = 96
POSITIONS = 512
SIZES: tuple[
    tuple[int, str], ...
] = (  # a small size, and the names of configurations' fields that get it
    (VOCAB, "vocab_size decoder_vocab_size vocab_size_per_layer_input"),
    (
        WIDTH,
        "hidden_size d_model n_embd emb_dim embedding_size word_embed_proj_dim "
        "embedding_dim input_embedding_size",
    ),
    (WIDTH, "output_embedding_size lru_width attention_hidden_size dim_model_base"),
    (
        LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
        "num_decoder_layers",
    ),
    (LAYERS, "num_encoder_layers num_blocks num_layers_per_stack"),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "encoder_attention_heads",
    ),
    (HEADS, "num_decoder_attention_heads num_encoder_attention_heads attention_heads"),
    (KV_HEADS, "num_key_value_heads num_kv_heads"),
    (
        HEAD,
        "head_dim global_head_dim dim_head kv_channels d_head attention_head_size "
        "index_head_dim rotary_dim",
    ),
    (
        96,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size d_inner "
        "dff dim_ff",
    ),
    (96, "feed_forward_size intermediate_size_mlp"),
    (
        32,
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size",
    ),
    (32, "expert_ffn_hidden_size moe_ffn_hidden_size moe_latent_size"),
    (
        POSITIONS,
        "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions",
    ),
    (24, "sliding_window local_attention attention_window_size window_size attention_chunk_size"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num"),
    (2, "num_experts_per_tok moe_topk moe_k num_experts_per_token experts_per_token"),
    (16, "q_lora_rank kv_lora_rank o_lora_rank"),
    (HEAD, "qk_rope_head_dim"),  # some configurations have it as head_dim too
    (16, "qk_nope_head_dim v_head_dim"),
    (16, "index_topk"),
    (
        1,
        "n_group num_expert_group topk_group n_groups mamba_n_groups first_k_dense_replace "
        "moe_layer_start_index",
    ),
    (
        16,
        "linear_key_head_dim linear_value_head_dim mamba_d_state ssm_state_size state_size "
        "mamba_headdim",
    ),
    (2, "linear_num_key_heads"),
    (4, "linear_num_value_heads"),
    (
        16,
        "index_n_heads",
    ),  # so many that hardly a key has a score of zero: torch.topk orders equal scores as it likes
)
SMALL = {name: size for size, names in SIZES for name in names.split()}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# What a family needs beyond small sizes: numbers that must fit each other, and defaults that do not
# run.
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
# they add up to HEAD / 2
SECTIONS = {"text_config": {"rope_parameters": ROTARY | {"mrope_section": [2, 3, 3]}}}
HALF = {
    "text_config": {
        "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
    }
}
SHARED = {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2}
INDEXER = {
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "indexer_head_dim": HEAD,
    "indexer_kv_heads": 1,
    "indexer_n_heads": 16,
}
BY_KIND = {"full_attention": ROTARY, "sliding_attention": ROTARY}
IMAGES = {"vocabulary_map": {"<image>": VOCAB - 1, "<|extra_200|>": VOCAB - 2}}
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "attn_layer_indices": [1, 3]},
    "bailing_hybrid": {"num_expert_group": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0, "kv_n_heads": 2}},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "index_topk": 4,
    },
    "dots3_note_text": {"head_dim": 32, "shared_experts_intermediate_size": 32},
    "dots3_note": {
        "text_config": {"head_dim": 32, "shared_experts_intermediate_size": 32},
        "vision_config": {"adapter_in_dim": WIDTH, "adapter_out_dim": WIDTH},
        "audio_config": {"adapter_input_size": WIDTH, "adapter_out_dim": WIDTH},
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": SHARED,
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD},
    "ministral": {"head_dim": HEAD},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 2]],
        "attention_layers": ["global", "local"] * 2,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": [16, 48],
        "attn_layers": ["local", "lsh"] * 2,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 20,
        "shape_vocab_size": 20,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "xmod": {"default_language": "en_XX"},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_n_heads": KV_HEADS,
        "index_block_size": 8,
        "index_topk_blocks": 2,
    },
    "nemotron": {"num_key_value_heads": 2},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 3,
        "mamba_dt_rank": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere_compass_text": {"rope_parameters": BY_KIND},
    "cohere_compass": {"text_config": {"rope_parameters": BY_KIND}},
    "qwen2_vl": SECTIONS,
    "qwen2_5_vl": SECTIONS,
    "qwen2_5_omni_thinker": SECTIONS | {"vision_start_token_id": 90},
    "qwen3_omni_moe_thinker": SECTIONS | {"vision_start_token_id": 90},
    "paddleocr_vl": SECTIONS,
    "cosmos3_edge": SECTIONS,
    "glm4v": SECTIONS,
    "glm46v": SECTIONS,
    "glmga": SECTIONS,
    "glm_ocr": SECTIONS,
    "glm4v_moe": HALF,
    "chameleon": IMAGES,
    "emu3": IMAGES,
    "mistral4": {"qk_rope_head_dim": 8, "head_dim": HEAD},
    "deepseek_ocr2": {
        "text_config": {
            "mlp_layer_types": ["dense", "sparse"] * 2,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
        }
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    },
    "ernie4_5_vl_moe": {
        "text_config": {
            "rope_parameters": ROTARY | {"mrope_section": [3, 3, 2]},
            "moe_num_shared_experts": 1,
        }
    },
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0],
        "downsample_rate": "4/8",
    },
    "mistral_large4": {"text_config": {"kv_source_layers": list(range(LAYERS))}},
    "granite_docling": {"vision_config": {"out_hidden_size": WIDTH}},
    "hunyuan_vl": {
        "text_config": {
            "head_dim": HEAD,
            "rope_parameters": ROTARY | {"mrope_section": [2, 2, 2, 2]},
        }
    },
    "inkling2": {"vision_config": {"text_hidden_size": WIDTH}},
    "muse_spark": {"out_hidden_size": WIDTH, "audio_config": {"out_hidden_size": WIDTH}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2], "text_hidden_size": WIDTH}},
    "step3p7": {
        "text_config": {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }
    },
    "qwen4_exp": {"text_config": INDEXER},
    "qwen4_exp_text": INDEXER,
    "perception_lm": {"vision_config": {"model_args": {"embed_dim": WIDTH}}},
    "gemma3n": {"text_config": SHARED},
    "gemma4_unified_assistant": {"text_config": SHARED},
    "gemma4_assistant": {"text_config": SHARED | {"num_kv_shared_layers": LAYERS}},
    "zamba2": {
        "hybrid_layer_ids": [1, 3],
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * HEAD,
        "num_key_value_heads": HEADS,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
    },
    "zamba": {
        "layers_block_type": [
            "linear_attention",
            "linear_attention",
            "hybrid",
            "linear_attention",
            "hybrid",
        ],
        "num_hidden_layers": 5,
        "mamba_dt_rank": 4,
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * HEAD,
        "num_key_value_heads": HEADS,
    },
}
# Arguments without which a default configuration is refused by its own class.
PLAIN = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
GIVEN: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {"text_config": PLAIN | {"num_kv_shared_layers": 30}}
}
BOTH_SIDES = {  # BERT and its like, which are decoders if their configuration says so
    *(
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
    ),
    *(
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ),
}


def shrunk(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration's fields with small sizes, in its nested configurations too, and these
    changes.
    """
    small = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name.endswith("_config") and name != "per_layer_config":
            value = shrunk(value, changes.get(name, {}))
        elif type(value) is int and name.endswith(("token_id", "token_index")):
            value = TOKENS.get(name, min(value, VOCAB - 1))
        elif type(value) is int and name in SMALL:
            value = min(value, SMALL[name])
        elif isinstance(value, list) and name in SMALL:
            value = [min(v, SMALL[name]) for v in value]
        small[name] = value
    if "qk_head_dim" in fields:
        small["qk_head_dim"] = small["qk_nope_head_dim"] + small["qk_rope_head_dim"]
    if "eos_token_id" in small:
        small["eos_token_id"] = TOKENS["eos_token_id"]
    if fields.get("kv_lora_rank") and "num_key_value_heads" in fields:
        small["num_key_value_heads"] = small["num_attention_heads"]
    layers = fields.get("num_hidden_layers")
    # A list of the layers themselves, such as Llama 4's moe_layers, makes no two of them alike.
    lists = {
        k: v
        for k, v in fields.items()
        if isinstance(v, list) and layers and len(v) == layers != len(set(map(repr, v)))
    }
    if lists:
        chosen = one_of_each(
            list(zip(*(map(repr, values) for values in lists.values()), strict=True))
        )
        small |= {name: [small[name][i] for i in chosen] for name in lists}
        small["num_hidden_layers"] = len(chosen)
        if by_layer := fields.get("per_layer_config"):
            kept = {
                new: by_layer.get(old, by_layer.get(str(old))) for new, old in enumerate(chosen)
            }
            small["per_layer_config"] = {n: shrunk(x, {}) for n, x in kept.items() if x is not None}
    return small | {k: v for k, v in changes.items() if not k.endswith("_config")}


def one_of_each(layers: list[Any]) -> list[int]:
    """Layers, in order, that include one of each kind; at least LAYERS of them where there are as
    many.
    """
    chosen = [layers.index(kind) for kind in dict.fromkeys(layers)]
    rest = [i for i in range(len(layers)) if i not in chosen]
    return sorted(chosen + rest[: max(0, LAYERS - len(chosen))])


def config(kind: str) -> Any:
    """A tiny configuration of this model_type."""
    cls = CONFIG_MAPPING[kind]
    changes = CHANGES.get(kind, {}) | ({"is_decoder": True} if kind in BOTH_SIDES else {})
    return cls.from_dict(shrunk(default(kind).to_dict(), changes))


def prompt(length: int) -> list[int]:
    """Random tokens, none of them special."""
    g = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB, (length,), generator=g).tolist()


@torch.no_grad()
def build(small: Any, seed: int = 0) -> Any:
    """A random model of this configuration in float32 whose next tokens are neither constant nor
    uniform.
    """
    torch.manual_seed(seed)
    with towers_are_optional():
        model = class_of(small)(small).eval()
    head = model.get_output_embeddings()
    # large ones would repeat a token
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    for name, p in model.named_parameters():
        if p.dim() > 1 or not (
            "bias" in name or p.any()
        ):  # zeros would hide what is computed from them
            torch.nn.init.normal_(p, std=0.25 if "embed" not in name else 0.1 if tied else 1.0)
    return model.float()


def default(kind: str) -> Any:
    """The configuration of this model_type as its class has it, in full size."""
    return CONFIG_MAPPING[kind](**GIVEN.get(kind, {}))
