"""Random GGUF files in a model's shape are read, packed, as a model before training."""

from __future__ import annotations

import pytest
import random_gguf
import torch
from random_gguf import MXFP4, Q4_0, Q4_K, Q6_K, Q8_0, STD, Shape, blocks

from longdraft.backends.packed_experts import PackedExperts
from longdraft.core.tree import Tree
from longdraft.models.gguf.blocks import TYPES
from longdraft.models.loading import load
from longdraft.ops import native
from longdraft.ops.packed import Packed

SMALL = {
    "qwen3moe": Shape("qwen3moe", 2, 256, 4, 2, 64, 256, 300, 4, 2, 256),
    "gpt-oss": Shape("gpt-oss", 2, 256, 4, 2, 64, 256, 300, 4, 2, 256, 32, 150000.0, 131072),
    "gemma3": Shape("gemma3", 6, 256, 4, 2, 64, 256, 300, window=32),
    "qwen3": Shape("qwen3", 2, 256, 4, 2, 64, 256, 300),
}


@pytest.mark.parametrize("kind", [Q4_0, Q8_0, MXFP4, Q4_K, Q6_K], ids=lambda k: str(k.number))
def test_entries_have_the_deviation_that_is_asked_for(kind):
    made = blocks(kind, 256, STD, random_gguf.np.random.default_rng(0))
    data = torch.from_numpy(made).view(16, 16, kind.size)
    packed = TYPES[kind.number].unpack(data)
    assert isinstance(packed, Packed)
    entries = packed.dequantized()
    assert abs(entries.mean()) < STD / 5
    assert STD * 0.7 < entries.std() < STD * 1.5


@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_a_file_is_a_model(name, tmp_path, monkeypatch):
    monkeypatch.setattr(random_gguf, "CHUNK", 64)
    out = tmp_path / "model.gguf"
    size = random_gguf.write(SMALL[name], out, 0)
    assert size == out.stat().st_size
    lm, tokenizer = load(str(out), "bfloat16")
    assert tokenizer("he").input_ids
    assert any(isinstance(m, PackedExperts) for m in lm.hf.modules()) is bool(SMALL[name].experts)
    if native.library() is not None:
        assert lm.backend.name == "native" and lm.exact
    logits = lm(Tree.chain(torch.tensor([[3, 70, 9, 3]])), lm.new_cache(1, 8))
    assert logits.isfinite().all() and logits.shape == (1, 4, 300)


def test_another_seed_is_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(random_gguf, "CHUNK", 64)
    files = []
    for i, seed in enumerate((0, 0, 1)):
        random_gguf.write(SMALL["qwen3"], tmp_path / str(i), seed)
        files.append((tmp_path / str(i)).read_bytes())
    assert files[0] == files[1] != files[2]
