"""Tiny random models: one per thing that an architecture can do differently."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from longdraft.model import LM

BASE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2}
CONFIGS = {
    "llama": LlamaConfig(**BASE),
    "qwen3": Qwen3Config(**BASE),
    "mistral-window": MistralConfig(**BASE, sliding_window=24),
    "gpt-oss": GptOssConfig(**{**BASE, "num_hidden_layers": 4}, num_local_experts=4, sliding_window=24, **MOE),
    "qwen3-moe": Qwen3MoeConfig(**BASE, num_experts=4, moe_intermediate_size=32, **MOE),
}


def stock(name: str, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A random Transformers model whose next tokens are neither constant nor uniform."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[name]), attn_implementation="eager").eval()
    for key, p in model.named_parameters():
        if p.dim() > 1 or key.endswith("sinks"):
            torch.nn.init.normal_(p, std=0.25)
    return model.to(dtype)


@cache
def target(name: str) -> LM:
    return LM(stock(name), name)


def prompts(*lengths: int, seed: int = 0, vocab: int = 96) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (n,), generator=g).tolist() for n in lengths]
