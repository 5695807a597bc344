"""Bytes that a pass moves of a model with recurrent layers: its weights, its keys, and its states
twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny_models
import torch
from support import tiny
from support.listed import full

from longdraft.models.lm import LM
from longdraft.models.memory_traffic import bytes_read, keys_read, states_moved, weights_of

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import scale


@pytest.fixture(scope="module")
def hybrid() -> LM:
    return LM(tiny_models.build(tiny_models.config("qwen3_5_text")))


def after(lm: LM, length: int):
    """A cache of two rows with tokens in the second, as a step finds it."""
    cache = lm.new_cache(2, 64)
    lm.extend_cache(torch.arange(3, 3 + length)[None], cache.row(1))
    cache.states(1).settle(length, cache.recurrences)
    return cache


def test_a_step_reads_and_writes_the_states(hybrid):
    cache = after(hybrid, 9)
    states = sum(x.nbytes for x in cache.states(1).states.values())
    assert states > 0 and states_moved(cache) == 2 * states
    assert (
        bytes_read(hybrid, cache)
        == weights_of(hybrid).read(2) + keys_read(hybrid, cache) + 2 * states
    )
    assert states_moved(cache.row(0)) == 0


def test_states_do_not_grow_with_the_context_or_the_nodes(hybrid):
    short = after(hybrid, 9)
    long = after(hybrid, 40)
    assert states_moved(short) == states_moved(long)
    assert bytes_read(hybrid, long, 4) - bytes_read(hybrid, long, 1) == 0
    assert bytes_read(hybrid, long) - bytes_read(hybrid, short) == keys_read(
        hybrid, long
    ) - keys_read(hybrid, short)


def test_more_nodes_read_more_experts():
    lm = tiny.target("qwen3-moe")
    w = weights_of(lm)
    experts = 3 * 4 * (64 * 64 + 64 * 32) * 4
    assert w.experts == experts and w.shared + w.experts == lm.nbytes()
    # two of four each
    assert w.read(1) == w.shared + experts / 2 and w.read(2) == w.shared + experts * 3 / 4


@torch.inference_mode()
def test_a_window_is_read_whatever_the_view():
    lm = tiny.target("qwen3-mixed")
    slot = 2 * (2 * 16) * 4
    cache = lm.new_cache(1, 64)
    lm.prefill(tiny.prompts(41)[0][:-1], cache)
    assert keys_read(lm, cache) == slot * (24 + 40 + 24)
    assert keys_read(lm, cache, lambda lengths: [10]) == slot * (24 + 10 + 24)


@pytest.mark.parametrize(
    "kind", ["qwen3_5_text", "nemotron_h", pytest.param("qwen3_5_moe_text", marks=full)]
)
def test_states_and_inputs_are_what_the_page_on_scale_counts(kind):
    """In a miniature in bfloat16. Older versions of Transformers repeat the keys for every value
    head.
    """
    config = tiny_models.config(kind)
    lm = LM(tiny_models.build(config).to(torch.bfloat16))
    counted = scale.recurrent(config)
    lm.backend = lm.eager  # the native one keeps inputs in float32
    cache = after(lm, 9)
    row = cache.states(1)
    inputs = sum(x.nbytes for scan in cache.recurrences for x in row.inputs(scan, 0, 1))
    assert row.nbytes() == counted.state * lm.architecture.scans
    heads, grouped = (getattr(config, f"linear_num_{side}_heads", 0) for side in ("value", "key"))
    repeated = 2 * (heads - grouped) * getattr(config, "linear_key_head_dim", 0)
    assert inputs / lm.architecture.scans in (counted.inputs, counted.inputs + repeated)
