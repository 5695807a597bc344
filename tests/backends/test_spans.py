"""Chunked attention and temperatures by position: Llama 4's layers, across the borders of both."""

from __future__ import annotations

from collections.abc import Callable

import coverage
import pytest
import tiny_models
import torch
from support import borders
from transformers.models.ministral3 import modeling_ministral3 as ministral3

from longdraft.backends import describe_attention, native
from longdraft.backends.features import temperature
from longdraft.backends.features.span import Chunk, Window
from longdraft.core import Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.support import probe
from longdraft.ops.native import library

LENGTHS = (40, 17)  # and 12 new tokens: over the border at 48, and over that at 24
FAST = ("vegas-tree",)


@pytest.fixture(scope="module")
def hf():
    return borders.llama4()


@pytest.fixture(scope="module")
def lm(hf):
    return LM(hf, "llama4")


def test_what_a_span_shows():
    assert [Chunk(3).low(p) for p in range(7)] == [0, 0, 0, 3, 3, 3, 6]
    assert [Window(3).low(p) for p in range(4)] == [-2, -1, 0, 1]
    assert Chunk(3).low(torch.arange(7)).tolist() == [0, 0, 0, 3, 3, 3, 6]


@pytest.mark.full
def test_plain_decoding_is_transformers_across_borders(hf, lm):
    """The second comparison is with the same modules, which longdraft has taken over."""
    expected = borders.by_transformers(borders.llama4(), *LENGTHS)
    assert borders.plain(LM(hf, "llama4"), *LENGTHS) == expected
    assert borders.by_transformers(hf, *LENGTHS) == expected
    hf.set_attn_implementation("longdraft")


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [m if m in FAST else pytest.param(m, marks=pytest.mark.full) for m in coverage.METHODS],
)
def test_methods_are_plain_decoding(lm, method):
    if method == "quantspec" and "router" in str(lm.hf):
        pytest.skip("routers that are linear layers cannot be quantized")
    fault = borders.fault(lm, method, *LENGTHS)
    assert not fault or (method == "longspec" and fault.startswith(coverage.REFUSED))


def test_a_tree_that_straddles_a_border_is_its_paths(lm):
    """A node sees the chunk of its own position: siblings in slots beyond the border can lie before
    it.
    """
    (prompt,) = borders.prompts(22)
    # depths 0 to 4: positions 22 to 26, of chunks 0 and 1
    parent = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 5, 6, 7]])
    tokens = torch.tensor([[5, 9, 30, 41, 17, 62, 8, 77, 33, 51]])
    logits = lm(tree_of(tokens, parent), filled(lm, prompt))
    for node in (4, 8, 9):
        path = [node]
        while (up := int(parent[0, path[0]])) >= 0:
            path.insert(0, up)
        alone = lm(Tree.chain(tokens[:, path]), filled(lm, prompt))
        torch.testing.assert_close(logits[:, path], alone, rtol=1e-4, atol=1e-4)


def tree_of(tokens, parent) -> Tree:
    size = parent.shape[1]
    mask = torch.eye(size, dtype=torch.bool)[None]
    depth = torch.zeros_like(parent)
    for i in range(1, size):
        up = int(parent[0, i])
        mask[0, i] |= mask[0, up]
        depth[0, i] = depth[0, up] + 1
    return Tree(tokens, parent, depth, mask)


def filled(lm, prompt):
    cache = lm.new_cache(1, 64)
    lm.prefill(prompt, cache)
    return cache


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("shift", [1, -1])
def test_a_chunk_border_off_by_one_is_seen(monkeypatch, lm, shift):
    expected = borders.by_transformers(borders.llama4(), *LENGTHS)
    monkeypatch.setattr(Chunk, "low", lambda self, p: p - (p + shift) % self.size)
    assert borders.plain(lm, *LENGTHS) != expected


def later(low: Callable) -> Callable:
    return lambda self, position: low(self, position) + 1


def passes_own(positions: torch.Tensor, beta: float, size: int) -> torch.Tensor:
    """A scale by the place in the pass, as of modules that count for themselves."""
    count = torch.arange(positions.shape[-1])[None]
    return (1 + beta * torch.log(1 + torch.floor(count / size)))[:, None, :, None]


FAULTS = {
    "a chunk that begins late": (
        "llama4_text",
        Chunk,
        "low",
        lambda self, p: p - (p - 1) % self.size,
    ),
    "a chunk that begins early": (
        "llama4_text",
        Chunk,
        "low",
        lambda self, p: p - (p + 1) % self.size,
    ),
    "a temperature that is ignored": ("llama4_text", temperature, "tempered", None),
    "a temperature by the place in the pass": (
        "ministral3",
        ministral3,
        "get_llama_4_attn_scale",
        passes_own,
    ),
    "a window that is short": ("gemma3_text", Window, "low", later(Window.low)),
    "a window that is long": ("gemma3_text", Window, "low", lambda self, p: p - self.size),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.full if n == "a chunk that begins early" else ())
        for n in FAULTS
    ],
)
def test_the_probe_at_load_sees(monkeypatch, name):
    """With the numbers of a real model: a temperature from 8,192 tokens on, for example."""
    kind, owner, attribute, broken = FAULTS[name]
    config = tiny_models.config(kind)
    for field in ("sliding_window", "attention_chunk_size"):
        if getattr(config, field, None):
            setattr(config, field, 4096)
    hf = tiny_models.build(config)
    before = repr(hf.config.to_dict())
    probe(hf)
    assert repr(hf.config.to_dict()) == before
    if broken is None:
        monkeypatch.setattr(temperature, "tempered", lambda module, query: query)
    else:
        monkeypatch.setattr(owner, attribute, broken)
    if broken is passes_own:  # the kernels compute this one themselves
        monkeypatch.setattr(native, "fits", lambda *_: False)
    with pytest.raises(InputError, match="differs from Transformers' own"):
        probe(hf)


@pytest.mark.skipif(library() is None, reason="built without a C++ compiler")
def test_the_probe_at_load_sees_a_temperature_that_kernels_lack(monkeypatch):
    hf = tiny_models.build(tiny_models.config("ministral3"))
    probe(hf)
    monkeypatch.setattr(describe_attention, "_temperature_of", lambda *_: None)
    with pytest.raises(InputError, match="differs from Transformers' own"):
        probe(hf)


def test_attention_layers_of_a_hybrid_class_run():
    """Granite 4 Micro: the class keeps states, the model has no layer with one."""
    config = tiny_models.config("granitemoehybrid")
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    coverage.refuse(config)
    hf = borders.built(config)
    probe(hf)
    expected = borders.by_transformers(hf, *LENGTHS)
    assert borders.plain(LM(hf), *LENGTHS) == expected
