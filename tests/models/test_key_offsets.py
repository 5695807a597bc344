"""What the keys of a head have in common is left out of their codes, and comes back with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from torch import Tensor

from longdraft.backends.key_offsets import POSITIONS, key_offsets
from longdraft.core import Captures, CaptureSpec, KVCache, Tree
from longdraft.models.lm import LM
from longdraft.ops import coded

COUNT = 70


@torch.no_grad()
def biased() -> Any:
    """A model whose keys are mostly bias, most of which turns slowly, as in Qwen2."""
    hf = tiny.stock("qwen2", rope_parameters={"rope_type": "default", "rope_theta": 1e9})
    for layer in hf.model.layers:
        layer.self_attn.k_proj.bias.mul_(10)
    return hf


def model() -> LM:
    return LM(biased(), kv="int8")


def keys(cache: KVCache, lm: LM) -> list[Tensor]:
    [prompt] = tiny.prompts(COUNT)
    lm.prefill(prompt, cache)
    return [cache.read(layer, 0)[0][:, :COUNT] for layer in cache.layers]


def distance(found: list[Tensor], want: list[Tensor]) -> float:
    """The mean error of a number, relative to what tokens add to the keys' mean."""
    size = torch.stack([(x - x.mean(1, keepdim=True)).abs().mean() for x in want]).mean()
    pairs = zip(found, want, strict=True)
    return float(torch.stack([(x - y).abs().mean() for x, y in pairs]).mean() / size)


@torch.inference_mode()
def test_an_offset_is_the_mean_of_the_rotated_bias():
    hf = biased()
    cos, sin = hf.model.rotary_emb(torch.zeros(1), torch.arange(POSITIONS)[None])
    for layer, found in key_offsets(hf).items():
        bias = hf.model.layers[layer].self_attn.k_proj.bias.view(len(found), 1, -1)
        half = bias.shape[-1] // 2
        turned = torch.cat([-bias[..., half:], bias[..., :half]], -1)
        want = (bias * cos + turned * sin).double().mean(1)
        assert (found - want).abs().max() < 1e-3 * bias.abs().max()
    assert len(key_offsets(hf)) == len(hf.model.layers)


def test_a_share_of_the_heads_has_their_offsets():
    whole = key_offsets(biased())
    hf = biased()
    for layer in hf.model.layers:
        module = layer.self_attn.k_proj
        module.bias = torch.nn.Parameter(module.bias[: len(module.bias) // 2])
    share = key_offsets(hf)
    assert share.keys() == whole.keys() and whole
    for layer, offset in share.items():
        assert torch.equal(offset, whole[layer][: len(whole[layer]) // 2])


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt-oss", "deepseek"])
def test_keys_without_a_bias_of_their_own_have_none(kind):
    """Without one, before a norm, or where nothing describes the model's layers."""
    offsets = key_offsets(tiny.stock(kind))
    assert all(not x.any() for x in offsets.values())


@pytest.mark.parametrize("backend", ["native", "eager"])
@torch.inference_mode()
def test_keys_are_near_those_of_the_model(backend, monkeypatch):
    """Nearer than they would be if the offset or the transform were left out."""
    lm = model()
    if backend == "eager":
        lm.backend = lm.eager
    want = keys(KVCache(1, 90), lm)
    near = distance(keys(lm.new_cache(1, 90), lm), want)
    assert near < 0.02
    assert distance(keys(KVCache(1, 90, bits=8), lm), want) > 1.2 * near
    if backend == "eager":
        monkeypatch.setattr(coded, "hadamard", lambda x: x)
        assert distance(keys(lm.new_cache(1, 90), lm), want) > 1.2 * near


@pytest.mark.usefixtures("build")
@torch.inference_mode()
def test_kept_scores_count_the_offset():
    """Leaving it out changes no weight, but scores are kept as logits, too."""
    lm = model()
    cache = lm.new_cache(1, 90)
    lm.prefill(tiny.prompts(COUNT)[0], cache)
    tree = Tree.chain(torch.tensor([[5, 6, 7]]))
    kept = [Captures(CaptureSpec("all")) for _ in range(2)]
    lm(tree, cache, captured=kept[0])
    lm.eager.forward(tree, cache, 0, None, kept[1])
    found, want = ({n: x.float() for n, x in c.scores.items()} for c in kept)
    assert found.keys() == want.keys() and want
    for layer, scores in want.items():
        assert (found[layer] - scores).abs().mean() < 0.05 * scores.abs().mean()
        assert cache.key_offsets[layer].abs().max() > 50
