"""Configurations of tiny models of families beyond those of tiny.py, as far as this version of
Transformers has them.
"""

from __future__ import annotations

from typing import Any

import transformers

BASE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 16}
ALL_HEADS = {"num_key_value_heads": 4}
MIXED = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GRANITE = {  # none of which changes anything by default
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
SMALL = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = {**SMALL, "num_experts": 4, "shared_expert_intermediate_size": 48}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
}
KINDS = {
    "full_attention": ROPE | {"partial_rotary_factor": 0.5},
    "sliding_attention": ROPE | {"partial_rotary_factor": 1.0},
}
SPARSE = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
# Attention to latents; numbers of its own, so that none can stand for another.
LATENT = {
    **ALL_HEADS,
    "max_position_embeddings": 4096,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 16,
}
ROUTED = {**LATENT, **SMALL, "n_routed_experts": 8, "n_shared_experts": 1}
ROUTED |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.7}
# The name of a configuration's class, and what it gets.
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "ministral3": (
        "Ministral3Config",
        {
            **HEAD,
            "rope_parameters": ROPE
            | {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8},
        },
    ),
    "apertus": ("ApertusConfig", {**HEAD, "rope_parameters": ROPE}),
    "granite-swa": (
        "GraniteSWAConfig",
        {**HEAD, **GRANITE, **MIXED, "layer_rope_theta": [100.0, 0, 10000.0]},
    ),
    "hyperclovax": ("HyperCLOVAXConfig", {**HEAD, **GRANITE, "logits_scaling": 0.5}),
    "nanochat": ("NanoChatConfig", HEAD),
    "olmo": ("OlmoConfig", {"clip_qkv": 1.0}),
    "gpt2": ("GPT2Config", {**ALL_HEADS, "n_inner": 80}),
    "gpt-bigcode": ("GPTBigCodeConfig", ALL_HEADS),
    "gpt-bigcode-heads": ("GPTBigCodeConfig", {**ALL_HEADS, "multi_query": False}),
    "opt": ("OPTConfig", {**ALL_HEADS, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "phi": ("PhiConfig", {"qk_layernorm": True}),
    "phi4-multimodal": (
        "Phi4MultimodalConfig",
        {
            "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
            | {"num_attention_heads": 2, "image_size": 56},
            "audio_config": {"hidden_size": 32, "intermediate_size": 32, "num_blocks": 1}
            | {"num_attention_heads": 2, "nemo_conv_channels": 32},
        },
    ),
    "stablelm": ("StableLmConfig", {"use_qkv_bias": True}),
    "stablelm-parallel": ("StableLmConfig", {"use_parallel_residual": True}),
    "persimmon": ("PersimmonConfig", ALL_HEADS),
    "falcon": ("FalconConfig", {"bias": True}),
    "falcon-serial": ("FalconConfig", {"multi_query": False, "parallel_attn": False}),
    "gpt-neox": ("GPTNeoXConfig", ALL_HEADS),
    "cohere-compass": (
        "CohereCompassTextConfig",
        {**HEAD, **MIXED, "rope_parameters": dict.fromkeys(KINDS, ROPE)},
    ),
}
EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2-moe": (
        "Cohere2MoeConfig",
        {**HEAD, **MIXED, **SPARSE, "num_experts": 4, "num_shared_experts": 1}
        | {"prefix_dense_intermediate_size": 96},
    ),
    "aria": (
        "AriaTextConfig",
        {"intermediate_size": 32, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2},
    ),
    "dbrx": (
        "DbrxConfig",
        {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512}
        | {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 1.0, "kv_n_heads": 2}}
        | {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    ),
    "mellum": (
        "MellumConfig",
        {**HEAD, **SMALL, **MIXED, **SPARSE, "num_experts": 4}
        | {"rope_parameters": dict.fromkeys(KINDS, ROPE)},
    ),
    "kolibri1": ("Kolibri1Config", {**HEAD, **SHARED, **MIXED}),
    "laguna": (
        "LagunaConfig",
        {**HEAD, **SHARED, **MIXED, "rope_parameters": KINDS, "moe_routed_scaling_factor": 1.7},
    ),
    "afmoe": (
        "AfmoeConfig",
        {**HEAD, **SMALL, **MIXED, "num_experts": 4, "mup_enabled": True, "route_scale": 1.7},
    ),
    "granite-shared": (
        "GraniteMoeSharedConfig",
        {**HEAD, **GRANITE, "num_local_experts": 4, "shared_intermediate_size": 48},
    ),
    "granite-moe-swa": (
        "GraniteMoeSWAConfig",
        {**HEAD, **GRANITE, **MIXED, "num_local_experts": 4, "shared_intermediate_size": 48}
        | {"layer_rope_theta": [100.0, 0, 10000.0]},
    ),
}
LATENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "minicpm3": (
        "MiniCPM3Config",
        {**LATENT, "scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 16},
    ),
    "youtu": ("YoutuConfig", LATENT),
    "youtu-half": ("YoutuConfig", {**LATENT, "rope_interleave": False}),
}
LATENT_EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v2": (
        "DeepseekV2Config",
        {**ROUTED, "q_lora_rank": None, "topk_method": "greedy"},
    ),
    "deepseek-v2-groups": (
        "DeepseekV2Config",
        {**ROUTED, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek-v3": ("DeepseekV3Config", {**ROUTED, "n_group": 4, "topk_group": 2}),
    "glm4-moe-lite": ("Glm4MoeLiteConfig", {**ROUTED, **SPARSE}),
    "axk1": ("AXK1Config", {**ROUTED, **SPARSE, "n_group": 1, "topk_group": 1}),
}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2Config", CONVOLUTIONS),
    "lfm2-moe": (
        "Lfm2MoeConfig",
        {**CONVOLUTIONS, **SMALL, "num_experts": 4, "num_dense_layers": 1},
    ),
    "lfm3": (
        "Lfm3Config",
        {**HEAD, "sliding_window": 24, "num_hidden_layers": 4}
        | {"layer_types": ["conv", "full_attention", "sliding_attention", "conv"]},
    ),
    "olmo-hybrid": (
        "OlmoHybridConfig",
        {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "num_hidden_layers": 4}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "rope_parameters": ROPE},
    ),
    "bamba": ("BambaConfig", {**MAMBA, "attn_layer_indices": [1], "num_hidden_layers": 4}),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        {**MAMBA, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"shared_intermediate_size": 48, "num_hidden_layers": 4}
        | {"layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "granite-hybrid-dense": (
        "GraniteMoeHybridConfig",
        {**MAMBA, **GRANITE, "num_local_experts": 0, "shared_intermediate_size": 48}
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"position_embedding_type": "rope"},
    ),
    "nemotron-h": (
        "NemotronHConfig",
        {**HEAD, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}
        | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "mlp"]}
        | {"num_hidden_layers": 5, "n_routed_experts": 4, "moe_shared_expert_intermediate_size": 48}
        | SMALL,
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        {**HEAD, **SHARED, "num_hidden_layers": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    ),
}
ALL = (DENSE, EXPERTS, LATENTS, LATENT_EXPERTS, HYBRIDS)


# Older versions build no such model, or share a class with another family.
LATER = {"aria", "cohere-compass", "nemotron-h"}
OLD = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23)


def there(rows: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The configurations whose classes there are."""
    found = {name: getattr(transformers, cls, None) for name, (cls, _) in rows.items()}
    if OLD:
        found = {name: cls for name, cls in found.items() if name not in LATER}
    return {name: cls(**(BASE | rows[name][1])) for name, cls in found.items() if cls is not None}
