"""llama.cpp reads the same model from a GGUF file: of tiny models of each architecture, both give
nearly the same probabilities.

Needs the package xllamacpp, a build of llama.cpp (`pip install 'longdraft[peers]'`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support import beside_llama_cpp
from support import gguf_files as files
from support.gguf_converters import KINDS, saved, stock
from support.gguf_files import F32

from longdraft.core import Tree
from longdraft.models.loading import load_lm

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]
TESTS = Path(__file__).parents[1]
LENGTHS = (1, 2, 7, 12, 20, 40)
# llama.cpp keeps keys and values as halves
TOLERANCE = 0.03
# Sizes and parts that tiny models have, and that llama.cpp's of the same architecture have not.
SIZES = {
    "seed_oss": {"attention_out_bias": False},
    "ernie4_5": {"use_bias": False},
    "ernie4_5-moe": {"use_bias": False},
    "olmoe": {"num_key_value_heads": 4},
    "dots1": {"num_key_value_heads": 4},
    "starcoder2": {"sliding_window": 4096},
    # whether queries have a low rank is told from the layers
    "deepseek2 of V2": {"num_hidden_layers": 27},
    # only a model of 64 layers has windows
    "exaone4": {"num_hidden_layers": 64}
    | {"layer_types": [*["sliding_attention"] * 3, "full_attention"] * 16},
}

# value heads of delta nets are as wide as key heads
SIZES |= {kind: {"linear_value_head_dim": 8} for kind in ("qwen3next", "qwen35", "qwen35moe")}
# Factors of the final norm, without which one token would be certain, or rounding would be seen.
WEAKENED = {"minicpm3": 0.02, "ernie4_5-moe": 0.3}


def prompts() -> list[list[int]]:
    g = torch.Generator().manual_seed(3)
    return [torch.randint(3, files.VOCAB, (n,), generator=g).tolist() for n in LENGTHS]


def differences(folder, kind, monkeypatch, changes=()) -> list[float]:
    """After each prompt, that of the likeliest tokens' log-probabilities.

    changes: of the metadata that only longdraft sees.
    """
    monkeypatch.setattr(files, "tokenizer", beside_llama_cpp.tokenizer)
    hf = stock(kind, **SIZES.get(kind, {}))
    if kind in WEAKENED:
        hf.model.norm.weight.data *= WEAKENED[kind]
    path = saved(folder, kind, hf)
    words = [sys.executable, "-m", "support.beside_llama_cpp", str(path), json.dumps(prompts())]
    told = subprocess.run(words, capture_output=True, text=True, cwd=TESTS, timeout=300)
    assert told.returncode == 0, (told.stdout + told.stderr)[-2000:]
    known = json.loads(told.stdout.splitlines()[-1])
    lm = load_lm(str(saved(folder, kind, hf, **dict(changes))), "float32", kv="full")
    found = []
    for prompt, theirs in zip(prompts(), known, strict=True):
        cache = lm.new_cache(1, len(prompt) + 1)
        ours = lm(Tree.chain(torch.tensor([prompt])), cache)[0, -1].log_softmax(-1)
        found.append(max(abs(float(ours[int(t)]) - p) for t, p in theirs.items()))
    return found


@torch.inference_mode(False)
@pytest.mark.parametrize("kind", KINDS)
def test_both_read_the_same_model(tmp_path, kind, monkeypatch):
    assert max(differences(tmp_path, kind, monkeypatch)) < TOLERANCE


@torch.inference_mode(False)
def test_another_model_would_be_noticed(tmp_path, monkeypatch):
    other = {"residual_scale": (F32, 1.0)}
    assert max(differences(tmp_path, "granite", monkeypatch, other)) > TOLERANCE
