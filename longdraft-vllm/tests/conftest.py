"""One tiny random Llama for all tests, and plain decoding by vLLM itself as the reference."""

from __future__ import annotations

import os

# one thread: the models are so small that on a busy machine threads mostly wait for each other
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

VOCAB = 96


def save_llama(folder: Path, vocab: int = VOCAB, std: float = 0.12, layers: int = 3) -> str:
    """A random Llama whose greedy outputs repeat themselves, so that drafts from the text are
    accepted too.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=std)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> str:
    return save_llama(tmp_path_factory.mktemp("llama"))
