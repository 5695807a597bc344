"""Rows of a cache, of which a part is decoded: the same numbers as of the whole, and codes of other
bits that the kernels make of codes.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.ops import Coding, Compact, StoredRow, coded, native, refill

HEADS = 3
SLOTS = 150


def offset_of(dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return 4 * torch.randn(HEADS, 1, dim, generator=generator)


def stored(dim: int, dtype: torch.dtype, bits: int = 8, moved: bool = True) -> StoredRow:
    """Codes among those of other rows, so that heads do not follow each other in memory."""
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(HEADS, SLOTS, dim, generator=generator).to(dtype) for _ in range(2))
    offset = offset_of(dim) if moved and bits == 8 else None
    k = k if offset is None else (k + offset).to(dtype)
    room = torch.zeros(2, HEADS, SLOTS + 9, coded.width(dim, bits), dtype=torch.uint8)
    room[0, :, :SLOTS] = coded.encode_keys(k, bits, offset)
    room[1, :, :SLOTS] = coded.encode_values(v, bits)
    return StoredRow(*room[:, :, :SLOTS], Coding(bits, dim, dim, dtype, offset))


def by_torch(row: StoredRow) -> tuple[Tensor, Tensor]:
    c = row.coding
    assert c is not None
    return (
        coded.decode_keys(row.k, c.bits, c.key, c.dtype, c.key_offset),
        coded.decode(row.v, c.bits, c.value, c.dtype),
    )


each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.mark.usefixtures("build")  # each build in turn
@pytest.mark.product
@each_dtype
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128])
def test_the_kernel_decodes_these_numbers(dim, moved, dtype):
    row = stored(dim, dtype, moved=moved)
    assert all(map(torch.equal, row.numbers(), by_torch(row)))


def test_an_offset_of_another_head_would_be_noticed():
    row = stored(64, torch.float32)
    c = row.coding
    assert c is not None and c.key_offset is not None
    moved = Coding(c.bits, c.key, c.value, c.dtype, c.key_offset.roll(1, 0).contiguous())
    assert not torch.equal(StoredRow(row.k, row.v, moved).keys(), by_torch(row)[0])


@each_dtype
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [20, 64])  # kernels do not decode keys of 20 numbers, nor 4 bits
def test_a_part_has_the_numbers_of_the_whole(dim, bits, dtype):
    row = stored(dim, dtype, bits)
    slots = torch.tensor([0, 3, 77, SLOTS - 1])
    of_heads = torch.stack([slots, slots + 0, slots.flip(0)])
    for whole, part, chosen, apart in zip(
        row.numbers(),
        row.part(40, 90).numbers(),
        row.at(slots).numbers(),
        row.at(of_heads).numbers(),
        strict=True,
    ):
        assert torch.equal(part, whole[:, 40:90])
        assert torch.equal(chosen, whole[:, slots])
        for head, wanted in enumerate(of_heads):
            assert torch.equal(apart[head], whole[head, wanted])


@pytest.mark.usefixtures("build")
@each_dtype
@pytest.mark.parametrize("dim", [16, 64, 96, 128])
def test_codes_of_4_bits_are_those_of_the_decoded_numbers(dim, dtype):
    """A copy that grows and moves, made of codes; what the codes of keys leave out stays so."""
    row = stored(dim, dtype)
    assert row.coding is not None
    k, v = by_torch(row)
    copy = Compact(4)
    for slots in (torch.arange(0, 100, 3), torch.arange(20, 120), torch.arange(SLOTS)):
        found = refill([(copy, row, slots)])[0]
        keys = coded.encode_keys(k[:, slots], 4, row.coding.key_offset)
        wanted = keys, coded.encode_values(v[:, slots], 4)
        for codes, want in zip(found, wanted, strict=True):
            for head in range(HEADS):
                assert {bytes(c) for c in codes[head].numpy()} == {
                    bytes(c) for c in want[head].numpy()
                }
    assert all(map(torch.equal, Compact(4).taken(row, slots), wanted))


def test_codes_of_the_same_bits_are_copied_as_they_are():
    row = stored(64, torch.float32)
    slots = torch.arange(5, 30)
    for bits in (0, 8):
        k, v = refill([(Compact(bits), row, slots)])[0]
        assert torch.equal(k, row.k[:, slots]) and torch.equal(v, row.v[:, slots])


def test_only_what_is_new_is_decoded():
    """Slots that a copy holds are not read again: their codes may have been changed."""
    if native.library() is None:
        pytest.skip("only native code keeps what is held")
    row = stored(64, torch.float32)
    copy = Compact(4)
    before = refill([(copy, row, torch.arange(50))])[0][0].clone()
    row.k[:, :50] = 0
    after = refill([(copy, row, torch.arange(60))])[0][0]
    assert torch.equal(after[:, :50], before)
    assert row.coding is not None
    fresh = coded.encode_keys(by_torch(row)[0][:, 50:60], 4, row.coding.key_offset)
    assert torch.equal(after[:, 50:], fresh)


@pytest.mark.parametrize("dim", [0, 24, 2048])
def test_kernels_refuse_sizes_they_cannot_decode(dim):
    lib = native.library()
    if lib is None:
        pytest.skip("no kernels here")
    codes = torch.zeros(1, 4, 4096, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="slots to be copied"):
        lib.longdraft_decode(codes.data_ptr(), 1, 4, 4096, dim, 1, None, 0, codes.data_ptr())


def test_a_cache_hands_out_rows_that_read_as_the_whole():
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, HEADS, 20, 64, generator=generator) for _ in range(2))
    for bits in (0, 8):
        cache = KVCache(2, 32, bits=bits, key_offsets={0: offset_of(64)[:, 0]} if bits else None)
        cache.write(0, k, v, [0, 3])
        for b, begin in enumerate((0, 3)):
            part = cache.stored_row(0, b).part(begin, begin + 20)
            read = [x[:, begin : begin + 20] for x in cache.read(0, b)]
            assert all(map(torch.equal, part.numbers(), read))
            assert (part.heads, part.dim, part.value_dim) == (HEADS, 64, 64)
            assert part.dtype == torch.float32 and part.bits == bits
            for found, given in zip(read, (k[b], v[b]), strict=True):
                assert (found - given).abs().max() < (0.12 if bits else 1e-9)
