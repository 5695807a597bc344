"""Weights of GGUF files are regrouped quickly, and to the same bits as entry by entry."""

from __future__ import annotations

import pytest
import torch
from support import gguf_files as files
from support import gguf_reference as reference

from longdraft.models.gguf import blocks
from longdraft.models.gguf.blocks import TYPES
from longdraft.ops import interleaved, packed
from longdraft.ops.packed import Packed, pack
from longdraft.ops.scales import PlainScales

OWN = [kind for kind in files.QUANTIZED if kind[:2] in ("Q4", "Q5", "Q6", "Q8")]
# rows and blocks; of 32 entries, three blocks do not fill a row's last 64
SHAPES = [(1, 1), (3, 2), (16, 3), (48, 7)]


def stored(kind: str, rows: int, count: int) -> torch.Tensor:
    """Random blocks, and around them other bytes, as in a file."""
    entries, size = files.SIZES[kind]
    data = files.blocks(kind, (rows, count * entries), 10 * rows + count)
    around = torch.frombuffer(bytearray(bytes(8) + data + bytes(8)), dtype=torch.uint8)
    return around[8:-8].view(rows, count, size)


def made(kind: str, rows: int, count: int) -> Packed:
    found = TYPES[files.NUMBER[kind]].unpack(stored(kind, rows, count))
    assert isinstance(found, Packed)
    return found


def differences(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
    """The names of parts that are not the same bit for bit."""
    assert found.keys() == wanted.keys()
    return [
        name
        for name, x in found.items()
        if x.dtype != wanted[name].dtype
        or not torch.equal(x.view(torch.uint8), wanted[name].contiguous().view(torch.uint8))
    ]


@pytest.mark.parametrize("rows, count", SHAPES)
@pytest.mark.parametrize("kind", OWN)
def test_regrouping_gives_the_bits_of_entries(kind, rows, count):
    found = made(kind, rows, count)
    wanted = reference.regrouped(kind, stored(kind, rows, count))
    assert (found.bits, found.inputs, found.group) == (wanted.bits, wanted.inputs, wanted.group)
    assert not differences(found.parts, wanted.parts)


@pytest.mark.parametrize("kind", files.QUANTIZED)
def test_parts_of_a_tensor_give_the_whole(kind, monkeypatch):
    """Whether scales are halves is decided for all rows, even if some rows alone could be."""
    whole = made(kind, 48, 3)
    monkeypatch.setattr(blocks, "PART", 7 * stored(kind, 1, 3).numel())
    assert not differences(made(kind, 48, 3).parts, whole.parts)


@pytest.mark.parametrize("rows, count", [(16, 3), (48, 7)])
@pytest.mark.parametrize("kind", files.QUANTIZED)
def test_the_order_of_sixteen_rows_is_that_of_codes(kind, rows, count, monkeypatch):
    monkeypatch.setattr(interleaved, "PART", 20)
    matrix = made(kind, rows, count)
    turned = interleaved.together(matrix)
    assert not differences(turned.parts, reference.together(matrix))
    assert not differences(interleaved.apart(turned).parts, matrix.parts)


@pytest.mark.parametrize("kind", files.QUANTIZED)
def test_entries_are_rounded_once(kind, monkeypatch):
    """In float32 where the product is exact, and in double precision where it is not."""
    monkeypatch.setattr(packed, "PART", 2000)
    matrix = made(kind, 48, 7)
    wanted = reference.dequantized(matrix)
    assert torch.equal(matrix.dequantized(), wanted)
    assert torch.equal(matrix.dequantized(torch.bfloat16), wanted.bfloat16())
    places = torch.arange(0, wanted.numel(), 5)
    assert torch.equal(matrix.entries(places), wanted.flatten()[places])


def put_together(kind: str, rows: int, count: int) -> Packed:
    found = TYPES[files.NUMBER[kind]].unpack(stored(kind, rows, count), turns=True)
    assert isinstance(found, Packed)
    return found


@pytest.mark.parametrize("rows, count", [(16, 1), (48, 7)])
@pytest.mark.parametrize("kind", files.QUANTIZED)
def test_both_steps_at_once_give_the_same_bits(kind, rows, count, monkeypatch):
    monkeypatch.setattr(blocks, "PART", 16 * stored(kind, 1, count).numel())
    found = put_together(kind, rows, count)
    wanted = made(kind, rows, count)
    assert not differences(found.parts, interleaved.together(wanted).parts)
    places = torch.arange(0, rows * wanted.inputs, 3)
    assert torch.equal(interleaved.entries(found, places), wanted.entries(places))


@pytest.mark.parametrize("mask", ["LOW_4_OF_32", "LOW_2_OF_32"])
def test_planted_faults_of_both_steps_are_found(mask, monkeypatch):
    wanted = interleaved.together(made("Q6_K", 16, 3))
    monkeypatch.setattr(blocks, mask, 0x07070707)
    assert differences(put_together("Q6_K", 16, 3).parts, wanted.parts)


@pytest.mark.parametrize("kind", ["Q5_K", "Q6_K"])
def test_entries_in_a_planted_order_are_found(kind, monkeypatch):
    matrix = made(kind, 16, 3)
    places = torch.arange(0, 16 * matrix.inputs, 3)
    found = put_together(kind, 16, 3)
    monkeypatch.setattr(interleaved, "_in_order", lambda words, width: words)
    assert not torch.equal(interleaved.entries(found, places), matrix.entries(places))


FAULTS = {
    "Q5_K": ("exchanged", lambda words, low, high: words),
    "Q4_0": ("LOW_4", 0x0707070707070707),
    "Q6_K": ("exchanged", lambda words, low, high: words),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_planted_faults_are_found(kind, monkeypatch):
    monkeypatch.setattr(blocks, *FAULTS[kind])
    found = made(kind, 16, 3)
    assert differences(found.parts, reference.regrouped(kind, stored(kind, 16, 3)).parts)


def test_a_planted_order_is_found(monkeypatch):
    matrix = made("Q5_K", 16, 3)
    monkeypatch.setattr(interleaved, "SWAPS", interleaved.SWAPS[:-1])
    turned = interleaved.together(matrix)
    assert differences(turned.parts, reference.together(matrix)) == ["high"]


def test_a_product_that_is_rounded_is_found(monkeypatch):
    """With scales of 24 digits and offsets, float32 would round twice."""
    g = torch.Generator().manual_seed(0)
    scales = PlainScales(*(torch.randn(16, 8, generator=g) for _ in range(2)))
    codes = torch.randint(-128, 128, (16, 128), generator=g).to(torch.int8)
    matrix = pack(8, codes, scales, 16)
    wanted = reference.dequantized(matrix)
    assert torch.equal(matrix.dequantized(), wanted)
    monkeypatch.setattr(packed, "EXACT", 99)
    assert not torch.equal(matrix.dequantized(), wanted)


def test_a_matrix_is_reordered_in_its_own_memory(monkeypatch):
    monkeypatch.setattr(interleaved, "PART", 32)
    for kind in ("Q4_K", "Q5_K", "Q6_K", "Q8_0"):
        matrix = made(kind, 80, 3)
        places = [x.data_ptr() for x in matrix.parts.values()]
        wanted = reference.together(matrix)
        interleaved.put_together(matrix)
        assert not differences(matrix.parts, wanted)
        assert [x.data_ptr() for x in matrix.parts.values()] == places
