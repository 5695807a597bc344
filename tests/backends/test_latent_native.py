"""Attention to latents in the native pass: beside Transformers' modules, and at lengths where a
pass is divided.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.listed import BUILD
from torch import Tensor

from longdraft import generate
from longdraft.backends.describe import describe
from longdraft.backends.native.layers import is_uniform, knows
from longdraft.core import Tree
from longdraft.engine.conversation import Conversation
from longdraft.models.lm import LM
from longdraft.ops import native

if native.library() is None:
    pytest.skip("no build of the native kernels runs here", allow_module_level=True)
if not tiny.LATENTS:
    pytest.skip("this version of Transformers caches expanded heads", allow_module_level=True)


def keys_of(lm: LM) -> Tensor:
    """What a text of 70 tokens leaves in the first layer's cache [1,S,rank+rotated]."""
    [prompt] = tiny.prompts(70)
    cache = lm.new_cache(1, 80)
    lm.prefill(prompt, cache)
    keys, values = cache.read(0, 0)
    assert values.shape[2] == 0
    return keys[:, :70].clone()


def both_caches(lm: LM) -> tuple[Tensor, Tensor]:
    """The native pass's, and that of Transformers' modules."""
    kept = lm.backend
    assert kept.name == "native" and kept.exact
    lm.backend = lm.eager
    slow = keys_of(lm)
    lm.backend = kept
    return keys_of(lm), slow


@torch.inference_mode()
@pytest.mark.parametrize("name", tiny.LATENTS)
def test_both_backends_cache_the_same(name: str) -> None:
    fast, slow = both_caches(LM(tiny.stock(name), name))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("field", ["put_apart", "interleaved"])
def test_another_order_of_rotated_numbers_is_noticed(field: str) -> None:
    lm = LM(tiny.stock("youtu"), "youtu")
    step: Any = lm.backend.step
    setattr(step.model, field, 0)
    if field == "interleaved":
        step.model.put_apart = 0
    fast, slow = both_caches(lm)
    assert (fast - slow).abs().max() > 0.1


@torch.inference_mode()
@pytest.mark.parametrize("field", ["k_norm", "q_down_norm", "to_latent", "from_latent"])
def test_a_part_of_another_layer_is_noticed(field: str) -> None:
    lm = LM(tiny.stock("deepseek-v3"), "deepseek-v3")
    tree = Tree.chain(torch.tensor(tiny.prompts(40)))
    expected = lm(tree, lm.new_cache(1, 64))
    step: Any = lm.backend.step
    layers = step.model.layer
    setattr(layers[1], field, getattr(layers[2], field))
    assert (lm(tree, lm.new_cache(1, 64)) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("length", [64, 512, pytest.param(3000, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["youtu-bf16", "deepseek-v3-bf16"])
def test_long_texts(name: str, length: int) -> None:
    for sampler in (SAMPLERS["greedy"], SAMPLERS["T=1"]):
        check_lossless(BUILD["vegas-tree"], name, sampler, (length, 1))


@pytest.mark.parametrize(("length", "kept"), [(64, 40), (400, 1), (1060, 1027)])
def test_messages_that_are_edited(length: int, kept: int) -> None:
    lm = tiny.target("youtu-bf16")
    talk = Conversation(lm)
    drafter = BUILD["vegas-tree"](lm)
    text, other = tiny.prompts(length, 33, seed=length)
    for prompt in (text, text + other, text[:kept] + other):
        steps = list(talk.answer(prompt, 16, drafter))
        plain = generate(lm, [prompt], max_new_tokens=16, eos=())[0]
        assert [t for step in steps for t in step.tokens[0]][:16] == plain


def test_many_heads_divide_a_prompt_into_smaller_passes() -> None:
    lm = LM(tiny.stock("youtu", num_attention_heads=64, num_key_value_heads=64), "youtu")
    assert lm.backend.name == "native" and lm.backend.max_nodes == 32
    assert LM(tiny.stock("youtu"), "youtu").backend.max_nodes == 128


def test_codes_are_read_by_the_models_own_modules() -> None:
    assert LM(tiny.stock("youtu"), "youtu", kv="int8").backend.name == "eager"
    assert LM(tiny.stock("youtu"), "youtu", kv="auto").kv is None


@torch.inference_mode()
def test_codes_and_slots_of_another_width_are_refused_by_the_kernels() -> None:
    lm = LM(tiny.stock("youtu"), "youtu")
    step: Any = lm.backend.step
    tree = Tree.root(torch.tensor([5]))
    for field, value in {"plain": 48, "value": 32, "rank": 24}.items():
        right = getattr(step.model, field)
        setattr(step.model, field, value)
        with pytest.raises(RuntimeError, match="shapes contradict"):
            lm(tree, lm.new_cache(1, 8))
        setattr(step.model, field, right)
    lm(tree, lm.new_cache(1, 8))


@pytest.mark.parametrize(
    "changes",
    [{"kv_lora_rank": 24}, {"v_head_dim": 8}, {"qk_nope_head_dim": 24}, {"q_lora_rank": 40}],
)
def test_sizes_that_fill_no_vector_run_elsewhere(changes: dict[str, int]) -> None:
    decoder = describe(tiny.stock("youtu", **changes))
    assert is_uniform(decoder) and not any(knows(layer) for layer in decoder.layers)
    assert LM(tiny.stock("youtu", **changes), "youtu").backend.name == "eager"
