"""Models of a given shape with random weights: the cost of decoding does not depend on trained weights."""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import DTYPES

HEAD = 64


def random_model(shape: str, dtype: str = "bfloat16", seed: int = 0, vocab: int = 4096, positions: int = 1 << 18) -> LM:
    """A Qwen3 model of shape LAYERSxHIDDEN in which every head has its own keys and values. Raises InputError.

    The output table is the embedding table shifted by one token, so that one next token clearly has the highest score:
    with the many near-ties of random weights, the oracle's replay would end early.
    """
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,4})", shape)
    if not match or int(match[2]) % HEAD:
        raise InputError(f"shape is {shape!r}: give LAYERSxHIDDEN, hidden a multiple of {HEAD}, like 6x384")
    layers, hidden = int(match[1]), int(match[2])
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}: choose {' or '.join(DTYPES)}")
    heads = hidden // HEAD
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=max(HEAD, round(2.75 * hidden / HEAD) * HEAD),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        hf: Any = Qwen3ForCausalLM(config)
        table = torch.randn(vocab, hidden)
        hf.get_input_embeddings().weight.copy_(table)
        hf.get_output_embeddings().weight.copy_(table.roll(1, 0))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LM(hf.to(device=device, dtype=DTYPES[dtype]), f"random {layers}x{hidden}")
