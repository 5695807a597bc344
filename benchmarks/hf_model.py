"""The model and the prompts of the benchmarks of hf_generate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longdraft.bench.inputs import stdlib_prompt
from longdraft.models.loading import BUNDLED, quiet


def model_and_prompts(given: argparse.Namespace, count: int) -> tuple[Any, list[list[int]]]:
    """Transformers' model by --model, --dtype and --threads, and `count` prompts of --context
    tokens of library code.

    The model has no end token, so that every output has the same number of tokens.
    """
    quiet(given.threads)
    folder = BUNDLED if given.model == "bundled" else Path(given.model)
    ids, _ = stdlib_prompt(AutoTokenizer.from_pretrained(folder), given.context * count)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, given.dtype)).eval()
    model.generation_config.eos_token_id = None
    return model, [ids[i * given.context :][: given.context] for i in range(count)]
