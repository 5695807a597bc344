"""Tiny models whose attention changes with the position: chunks, temperatures, rotations of short
and long texts.
"""

from __future__ import annotations

from typing import Any

import coverage
import tiny_models

from longdraft import Sampler, generate
from longdraft.models.lm import LM

SAMPLERS = {"greedy": Sampler(), "T=1": Sampler(temperature=1.0)}
# tokens of short texts, and of any
BORDER = 32
POSITIONS = 128
SHORT = [1.0, 1.3, 1.1, 2.0, 1.2, 1.6, 1.4, 1.9]
LONG = [3.0, 5.0, 4.0, 7.0, 3.5, 6.0, 4.5, 9.0]


def llama4() -> Any:
    """Chunks of 24 in some layers; the others have no rotation and a temperature that grows every
    10 positions.
    """
    config = tiny_models.config("llama4_text")
    config.num_hidden_layers = 4
    config.moe_layers = [1, 3]
    config.layer_types, config.no_rope_layers = config.layer_types[:4], config.no_rope_layers[:4]
    config.floor_scale = 10
    config.attn_scale = 1.0
    return built(config)


def longrope(kind: str = "phi3", short: list[float] = SHORT) -> Any:
    """Other rotations for texts of more than BORDER tokens."""
    config = tiny_models.config(kind)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": short,
        "long_factor": LONG,
        "factor": 4.0,
    }
    rope |= {"original_max_position_embeddings": BORDER, "partial_rotary_factor": 1.0}
    config.max_position_embeddings = POSITIONS
    config.original_max_position_embeddings = BORDER
    config.rope_parameters = rope | (
        {"short_mscale": 1.1, "long_mscale": 1.3} if kind == "phimoe" else {}
    )
    return built(config)


def built(config: Any) -> Any:
    hf = tiny_models.build(config)
    hf.generation_config.eos_token_id = None
    return hf


def prompts(*lengths: int) -> list[list[int]]:
    return [tiny_models.prompt(n) for n in lengths]


def by_transformers(hf: Any, *lengths: int) -> list[list[int]]:
    """coverage.NEW tokens after each prompt, by Transformers' generate."""
    hf.set_attn_implementation("eager")
    return [coverage.by_transformers(hf, prompt) for prompt in prompts(*lengths)]


def plain(lm: LM, *lengths: int, new: int = coverage.NEW) -> list[list[int]]:
    return generate(lm, prompts(*lengths), max_new_tokens=new, eos=())


def fault(lm: LM, method: str, *lengths: int) -> str:
    """Why a method's output is not plain decoding's, greedily and sampled; empty: it is."""
    told = prompts(*lengths)
    said = {
        name: generate(lm, told, max_new_tokens=coverage.NEW, sampler=s, eos=())
        for name, s in SAMPLERS.items()
    }
    return coverage.fault(lm, method, coverage.METHODS[method], told, SAMPLERS, said)
