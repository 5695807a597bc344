"""Models of a given shape with random weights: the cost of decoding does not depend on trained
weights.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from longdraft.errors import InputError
from longdraft.families import QWEN3, QWEN3_5
from longdraft.models.lm import LM
from longdraft.models.loading import DTYPES

HEAD = 64
HYBRID = (
    "hybrid:"  # before the shape of a model whose layers are gated delta nets, but for every fourth
)
ROPE = {"rope_type": "default", "rope_theta": 1e6}


def sizes(shape: str) -> tuple[int, int]:
    """(number of layers, hidden size) of a shape. Raises InputError."""
    plain = shape.removeprefix(HYBRID)
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,4})", plain)
    unit = HEAD if plain == shape else 2 * HEAD
    if not match or int(match[2]) % unit:
        example = "6x384" if plain == shape else f"{HYBRID}8x384"
        raise InputError(
            f"shape is {shape!r}: give LAYERSxHIDDEN, hidden a multiple of {unit}, like {example}"
        )
    layers = int(match[1])
    hidden = int(match[2])
    if plain != shape and layers < 4:
        raise InputError(
            f"shape is {shape!r}: give 4 layers or more, because every fourth one of a "
            "hybrid attends"
        )
    return layers, hidden


def random_model(
    shape: str, dtype: str = "bfloat16", seed: int = 0, vocab: int = 4096, positions: int = 1 << 18
) -> LM:
    """A Qwen3 model of shape LAYERSxHIDDEN in which every head has its own keys and values, or with
    HYBRID before it a Qwen 3.5 in the proportions of the 0.8B. Raises InputError.

    The output table is the embedding table shifted by one token, so that one next token clearly has
    the highest score: with the many near-ties of random weights, the oracle's replay would end
    early.
    """
    layers, hidden = sizes(shape)
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}: choose {' or '.join(DTYPES)}")
    common = {
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }
    config_of = _hybrid if shape.startswith(HYBRID) else _dense
    config = config_of(layers, hidden, common)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        hf: Any = AutoModelForCausalLM.from_config(config)
        table = torch.randn(vocab, hidden)
        hf.get_input_embeddings().weight.copy_(table)
        hf.get_output_embeddings().weight.copy_(table.roll(1, 0))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LM(hf.to(device=device, dtype=DTYPES[dtype]), f"random {shape}")


def _dense(layers: int, hidden: int, common: dict[str, Any]) -> Any:
    return QWEN3.config_class(
        hidden_size=hidden,
        intermediate_size=max(HEAD, round(2.75 * hidden / HEAD) * HEAD),
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=hidden // HEAD,
        head_dim=HEAD,
        rope_parameters=ROPE,
        **common,
    )


def _hybrid(layers: int, hidden: int, common: dict[str, Any]) -> Any:
    heads = hidden // (2 * HEAD)
    return QWEN3_5.config_class(
        hidden_size=hidden,
        intermediate_size=7 * hidden // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1) if heads % 4 == 0 else heads,
        head_dim=4 * HEAD,
        linear_num_key_heads=2 * heads,
        linear_num_value_heads=2 * heads,
        linear_key_head_dim=2 * HEAD,
        linear_value_head_dim=2 * HEAD,
        rope_parameters=ROPE | {"partial_rotary_factor": 0.25},
        **common,
    )
