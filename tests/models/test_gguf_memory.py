"""Weights of a GGUF file are regrouped straight into the memory where they stay."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from support import gguf_files as files
from torch import Tensor

from longdraft.models import loading
from longdraft.models.alignment import Area, align_weights
from longdraft.models.gguf import file as gguf
from longdraft.models.gguf import model as gguf_model
from longdraft.models.gguf import tokenizer
from longdraft.models.gguf.blocks import TYPES
from longdraft.models.identity import digest
from longdraft.ops.packed import Packed

LINE = 64  # bytes of a line of the processor's cache


@pytest.fixture
def loaded(monkeypatch):
    """path -> weights by name, and those that had to be moved after they were regrouped."""
    moved = list[Tensor]()

    def spy(weights, area):
        weights = list(weights)
        moved.extend(p for p in weights if not area.has(p))
        align_weights(weights, area)

    monkeypatch.setattr(loading, "align_weights", spy)

    def load(path: Path) -> tuple[dict[str, Tensor], int]:
        moved.clear()
        lm = loading.load_lm(str(path), "bfloat16", "cpu", activations="int8")
        return dict(lm.hf.named_parameters()), len(moved)

    return load


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(x, right[n]) for n, x in left.items())


@pytest.mark.each_value
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0"])
def test_weights_stay_where_they_are_put(tmp_path, loaded, monkeypatch, arch, tied, kind):
    hf = files.stock(arch, tied)
    path = files.saved(tmp_path, hf=hf, quantized=kind)
    weights, moved = loaded(path)
    assert moved == 0
    assert all(p.data_ptr() % LINE == 0 for p in weights.values())
    # without the area they are moved, and are the same
    monkeypatch.setattr(gguf_model, "area_for", lambda file, dtype: Area(0))
    others, moved = loaded(path)
    assert moved == len(weights)
    assert all(p.data_ptr() % LINE == 0 for p in others.values())
    assert same(weights, others)


def test_values_of_unknown_size_are_moved(tmp_path, loaded):
    """Scales of IQ4_NL become halves if that changes none of them."""
    weights, _ = loaded(files.saved(tmp_path, quantized="IQ4_NL"))
    assert all(p.data_ptr() % LINE == 0 for p in weights.values())


def test_reordering_in_place_gives_the_weights_of_a_copy(tmp_path, loaded, monkeypatch):
    path = files.saved(tmp_path, quantized="Q5_0")
    weights, _ = loaded(path)
    rounding = loading.round_inputs
    copying = partial(rounding, in_place=False)
    monkeypatch.setattr(loading, "round_inputs", lambda hf, report, in_place: copying(hf, report))
    others, moved = loaded(path)
    assert moved and same(weights, others)
    # a fault that the comparison finds
    monkeypatch.setattr(loading, "round_inputs", lambda hf, report, in_place: 1)
    assert not same(loaded(path)[0], weights)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3_moe"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q5_0", "MXFP4"])
def test_weights_that_are_put_together_at_once_are_those_of_two_steps(
    tmp_path, monkeypatch, arch, tied, kind
):
    path = files.saved(tmp_path, hf=files.stock(arch, tied), quantized=kind)
    found = loading.load_lm(str(path), "bfloat16", "cpu", activations="int8")
    monkeypatch.setattr(loading, "TESTED", set())
    steps = loading.load_lm(str(path), "bfloat16", "cpu", activations="int8")
    full = loading.load_lm(str(path), "bfloat16", "cpu", activations="full")
    weights, wanted = (dict(lm.hf.named_parameters()) for lm in (found, steps))
    assert same(weights, wanted)
    assert not same(weights, dict(full.hf.named_parameters()))
    # the digest does not depend on the order
    assert found.digest == steps.digest == digest(full.hf)


def test_an_area_gives_out_each_byte_once():
    area = Area(3 * LINE)
    first = area.take((5,), torch.float32)
    second = area.take((2, LINE), torch.uint8)
    assert area.has(first) and area.has(second)
    assert first.data_ptr() % LINE == 0
    assert second.data_ptr() == first.data_ptr() + LINE
    beyond = area.take((1,), torch.uint8)
    assert not area.has(beyond) and beyond.shape == (1,)


def test_transformers_takes_the_tokenizer_without_copying_it(tmp_path, monkeypatch):
    file = gguf.read(files.saved(tmp_path, quantized="Q4_0"))
    made = tokenizer.build(file)
    held = object()
    assert deepcopy(tokenizer.Uncopied(held)) is held
    monkeypatch.setattr(tokenizer, "Uncopied", lambda made: made)
    copied = tokenizer.build(file)
    assert made.backend_tokenizer.to_str() == copied.backend_tokenizer.to_str()
    assert made("Hello, world!").input_ids == copied("Hello, world!").input_ids


@pytest.mark.parametrize("kind", files.QUANTIZED)
def test_numbers_of_parts_are_those_of_the_whole(kind, monkeypatch):
    """Whether a part's scales are halves changes no number."""
    entries, size = files.SIZES[kind]
    data = torch.frombuffer(bytearray(files.blocks(kind, (48, 3 * entries))), dtype=torch.uint8)
    stored = gguf.Stored("made", TYPES[files.NUMBER[kind]], (48, 3 * entries), data)
    whole = stored.read()
    assert isinstance(whole, Packed)
    monkeypatch.setattr(gguf, "PART", 7 * 3 * size)
    out = torch.empty(48, 3 * entries, dtype=torch.bfloat16)
    assert torch.equal(stored.dequantized(out), whole.dequantized(torch.bfloat16))
