"""The tensor types of GGUF files: the size of a block of entries, and the meaning of its bits.

Every type of 8 bits or fewer becomes a Packed with the same values: the bits are regrouped, nothing
is rounded. Types of 4, 5, 6 and 8 bits take about as many bytes in memory as in the file. Those of
2 and 3 bits take 8 bits per entry; ternary ones take 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from longdraft.ops.bits import exchange_halves, exchanged
from longdraft.ops.interleaved import ROWS, WORD, together, turned
from longdraft.ops.packed import FP4, IQ4, Packed, pack
from longdraft.ops.scales import EightBitScales, PlainScales, Scales, SixBitScales

LOW_4 = 0x0F0F0F0F0F0F0F0F  # of each byte of a word, the four lowest bits
LOW_4_OF_32 = 0x0F0F0F0F
LOW_2_OF_32 = 0x33333333  # of each half of a byte, the two lowest bits
PART = 1 << 20  # bytes of blocks that are regrouped at a time
# (shape, dtype) -> a tensor for values
Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
Done = Callable[[Tensor], None]


def outside(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A Make that takes new memory."""
    return torch.empty(shape, dtype=dtype)


def kept(part: Tensor) -> None:
    """A Done for bytes that stay in memory."""


@dataclass(frozen=True)
class Type:
    """A tensor type: `size` bytes hold `entries` consecutive entries of a row.

    regroup: uint8 [rows,blocks,size] -> the values. turn: the same put together (see
    ops/interleaved.py) where that is faster in one step.
    """

    name: str
    entries: int
    size: int
    regroup: Callable[[Tensor], Packed | Tensor]
    turn: Callable[[Tensor], Packed] | None = None

    @property
    def is_packed(self) -> bool:
        return self.entries > 1

    def unpack(
        self, blocks: Tensor, make: Make = outside, done: Done = kept, turns: bool = False
    ) -> Packed | Tensor:
        """uint8 [rows,blocks,size] -> the values in memory of `make`, computed PART bytes at a
        time.

        Temporary tensors of that size stay in the processor's cache. `done` is called with parts
        that have been read. turns: packed values are put together, see ops/interleaved.py.
        """
        if not self.is_packed:
            made = self.regroup(blocks)
            done(blocks)
            return made
        short = self._put(blocks, make, done, turns, shorten=True)
        # whether halves hold the scales exactly is a question about all rows
        whole = self._put(blocks, make, done, turns, shorten=False) if short is None else short
        assert whole is not None
        return whole

    def _put(
        self, blocks: Tensor, make: Make, done: Done, turns: bool, shorten: bool
    ) -> Packed | None:
        """None: some scales cannot be shortened."""
        kind: Packed | None = None
        made = dict[str, Tensor]()
        begin = 0
        rows = max(1, PART // blocks[0].numel() // ROWS) * ROWS
        for part in blocks.split(rows):
            packed = self._turned(part) if turns else self.regroup(part)
            assert isinstance(packed, Packed)
            if shorten:
                packed = replace(packed, scales=packed.scales.shortest())
                if not packed.scales.is_shortest:
                    return None
            if kind is None:
                kind = packed
                for name, x in packed.parts.items():
                    made[name] = make((len(blocks), x.shape[1]), x.dtype)
            for name, x in packed.parts.items():
                made[name][begin : begin + len(part)] = x
            done(part)
            begin += len(part)
        assert kind is not None
        return kind.of(made)

    def _turned(self, blocks: Tensor) -> Packed:
        if self.turn is not None:
            return self.turn(blocks)
        packed = self.regroup(blocks)
        assert isinstance(packed, Packed)
        return together(packed)


def _parts(blocks: Tensor, *sizes: int) -> list[Tensor]:
    """Copies of a block's fields, [rows,blocks,size] each, which words of any size can view."""
    fields = blocks.split(sizes, -1)
    return [field.clone(memory_format=torch.contiguous_format) for field in fields]


def _halves(field: Tensor) -> Tensor:
    """[rows,blocks,2n] bytes -> float16 [rows,blocks*n]."""
    return field.view(torch.float16).flatten(1)


def _half(field: Tensor) -> Tensor:
    """[rows,blocks,2] bytes -> float32 [rows,blocks]."""
    return field.view(torch.float16).float().squeeze(-1)


def _packed(codes: Tensor, scale: Tensor, offset: Tensor) -> Packed:
    """codes int8 [rows,...] with entries in order; scale, offset [rows,...], one for each 16."""
    return pack(8, codes.flatten(1), PlainScales(scale.flatten(1), offset.flatten(1)), 16)


def _plain(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.clone().view(kind).flatten()


def _of_32(
    bits: int, entries: int, d: Tensor, m: Tensor | None, low: Tensor, high: Tensor | None = None
) -> Packed:
    """Blocks of 32 entries: d, m [rows,blocks,2] bytes; low and high in the order of Packed."""
    offset = None if m is None else _halves(m)
    return Packed(bits, entries, low, high, PlainScales(_halves(d), offset))


def _even(blocks: Tensor) -> Tensor:
    """An even number of blocks: Packed has blocks of 64. What is added stands for zeros."""
    return F.pad(blocks, (0, 0, 0, blocks.shape[1] % 2)) if blocks.shape[1] % 2 else blocks


def _low_of_32(codes: Tensor) -> Tensor:
    """[rows,blocks,16] bytes, of entries i and i+16 -> [rows,16*blocks], of entries i and i+32."""
    words = codes.view(torch.int64).unflatten(1, (-1, 2))
    exchange_halves(words[:, :, 0], words[:, :, 1], 4, LOW_4)
    return codes.flatten(1)


def _q4_0(blocks: Tensor) -> Packed:
    d, codes = _parts(_even(blocks), 2, 16)
    return _of_32(4, 32 * blocks.shape[1], d, None, _low_of_32(codes))


def _q4_1(blocks: Tensor) -> Packed:
    d, m, codes = _parts(_even(blocks), 2, 2, 16)
    return _of_32(4, 32 * blocks.shape[1], d, m, _low_of_32(codes))


def _q5_0(blocks: Tensor) -> Packed:
    d, high, codes = _parts(_even(blocks), 2, 4, 16)
    return _of_32(5, 32 * blocks.shape[1], d, None, _low_of_32(codes), high.flatten(1))


def _q5_1(blocks: Tensor) -> Packed:
    d, m, high, codes = _parts(_even(blocks), 2, 2, 4, 16)
    return _of_32(5, 32 * blocks.shape[1], d, m, _low_of_32(codes), high.flatten(1))


def _q8_0(blocks: Tensor) -> Packed:
    d, codes = _parts(_even(blocks), 2, 32)
    return _of_32(8, 32 * blocks.shape[1], d, None, codes.view(torch.int8).flatten(1))


def _nibbles(codes: Tensor) -> Tensor:
    """[..,N] bytes -> [..,2N]: all low halves, then all high halves."""
    return torch.cat([codes & 15, codes >> 4], -1)


def _iq4_nl(blocks: Tensor) -> Packed:
    d, codes = _parts(_even(blocks), 2, 16)
    return _of_levels(IQ4, 32 * blocks.shape[1], codes, PlainScales(_halves(d), None))


def _of_levels(levels: tuple[int, ...], entries: int, codes: Tensor, scales: Scales) -> Packed:
    """codes [rows,blocks,16] of an even number of blocks."""
    return Packed(4, entries, _low_of_32(codes), None, scales, levels=levels)


def _iq4_xs(blocks: Tensor) -> Packed:
    d, high, low, codes = _parts(blocks, 2, 2, 4, 128)  # a scale has 4 low bits and 2 high ones
    low = torch.stack([low & 15, low >> 4], -1).flatten(-2)
    scale = (low | (_pairs(high).transpose(-1, -2).flatten(-2)) << 4).view(torch.int8) - 32
    return _of_levels(
        IQ4,
        256 * blocks.shape[1],
        codes.unflatten(-1, (8, 16)).flatten(1, 2),
        EightBitScales(scale.flatten(1), _halves(d)),
    )


def _mxfp4(blocks: Tensor) -> Packed:
    exponent, codes = _parts(_even(blocks), 1, 16)
    scale = torch.exp2(exponent.flatten(1).double() - 128).float()
    scale[:, blocks.shape[1] :] = 0  # what _even added, which halves hold too
    return _of_levels(FP4, 32 * blocks.shape[1], codes, PlainScales(scale, None))


def _pairs(field: Tensor) -> Tensor:
    """[..,N] bytes -> [..,4,N]: the two lowest bits of each, the next two, and so on."""
    return field[..., None, :] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3


def _q2_k(blocks: Tensor) -> Packed:
    scales, codes, d, dmin = _parts(blocks, 16, 64, 2, 2)
    # of each half of the block, 128 entries
    codes = _pairs(codes.unflatten(-1, (2, 32))).view(torch.int8)
    return _packed(
        codes, _half(d)[..., None] * (scales & 15), -_half(dmin)[..., None] * (scales >> 4)
    )


def _ternary(digits: Tensor, d: Tensor) -> Packed:
    """digits [rows,256*blocks] of 0 to 2, which stand for -d, 0 and d."""
    scale = _halves(d).repeat_interleave(8, 1)
    return pack(4, digits + 7, PlainScales(scale, None))


def _tq1_0(blocks: Tensor) -> Packed:
    """Five digits of base 3 in a byte, as a fraction of 256; in the last four bytes, four."""
    many, some, rest, d = _parts(blocks, 32, 16, 4, 2)
    digits = [_digits(field, count) for field, count in ((many, 5), (some, 5), (rest, 4))]
    return _ternary(torch.cat(digits, -1).flatten(1), d)


def _digits(field: Tensor, count: int) -> Tensor:
    """[..,N] bytes -> [..,count*N]: the first digit of each, the second of each, and so on."""
    powers = torch.tensor([1, 3, 9, 27, 81][:count], dtype=torch.uint8)[:, None]
    rest = field[..., None, :] * powers  # without what is above 256
    return (rest.to(torch.int16) * 3 >> 8).to(torch.uint8).flatten(-2)


def _tq2_0(blocks: Tensor) -> Packed:
    codes, d = _parts(blocks, 64, 2)
    return _ternary(_pairs(codes.unflatten(-1, (2, 32))).flatten(1), d)


def _q3_k(blocks: Tensor) -> Packed:
    high, codes, scales, d = _parts(blocks, 32, 64, 12, 2)
    # bit g is of group g of 32
    third = (high[..., None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 2
    codes = (_pairs(codes.unflatten(-1, (2, 32))).flatten(-3, -2) | third).view(torch.int8) - 4
    low, upper = scales.split((8, 4), -1)  # a scale has 4 low bits and 2 high ones
    scale = (_nibbles(low) | _pairs(upper).flatten(-2) << 4).view(torch.int8) - 32
    scale = _half(d)[..., None] * scale
    return _packed(codes, scale, torch.zeros_like(scale))


def _k_scales(units: Tensor, scales: Tensor) -> Scales:
    """The scales of Q4_K and Q5_K. units: the bytes of d and dmin."""
    return SixBitScales(scales.flatten(1), _halves(units))


def _q4_k(blocks: Tensor) -> Packed:
    units, scales, codes = _parts(blocks, 4, 12, 128)
    return Packed(4, 256 * blocks.shape[1], codes.flatten(1), None, _k_scales(units, scales))


def _q5_k(blocks: Tensor) -> Packed:
    units, scales, high, low = _parts(blocks, 4, 12, 32, 128)
    # bit g of byte i is of entry i of group g: a square of bits for each 8 entries of 8 groups
    squares = high.view(torch.int64)
    for low_index, high_index in ((0, 3), (1, 4), (2, 5)):
        squares = exchanged(squares, low_index, high_index)
    fifth = squares.view(torch.uint8).unflatten(-1, (4, 8)).transpose(-1, -2).flatten(1)
    return Packed(5, 256 * blocks.shape[1], low.flatten(1), fifth, _k_scales(units, scales))


def _q6_k(blocks: Tensor) -> Packed:
    low, high, scales, units = _parts(blocks, 128, 64, 16, 2)
    # both halves of the block, 128 entries each: a byte of the low bits is of entries i and i+64
    words = low.view(torch.int64).unflatten(-1, (2, 2, 4))
    exchange_halves(words[..., 0, :], words[..., 1, :], 4, LOW_4)
    # and byte i of the high bits of entries i, i+32, i+64 and i+96; Packed has them of entries i,
    # i+16, i+32 and i+48
    words = high.view(torch.int64).unflatten(-1, (2, 2, 2))
    exchange_halves(words[..., 0, :], words[..., 1, :], 4, LOW_4)
    high = exchanged(high.view(torch.int64), 1, 2).view(torch.uint8)
    return Packed(
        6,
        256 * blocks.shape[1],
        low.flatten(1),
        high.flatten(1),
        EightBitScales(scales.view(torch.int8).flatten(1), _halves(units)),
        16,
    )


def _q6_k_turned(blocks: Tensor) -> Packed:
    """together(_q6_k(blocks)), with the words of sixteen rows beside each other before bits are
    moved: torch is slow where few words lie together.
    """
    low, high, scales, units = _parts(blocks, 128, 64, 16, 2)
    low = turned(low.flatten(1), WORD)
    # of each half of a block: the words of entries from 0 and from 32 on
    words = low.view(torch.int32).view(-1, 2, 8 * ROWS)
    exchange_halves(words[:, 0], words[:, 1], 4, LOW_4_OF_32)
    # Digits of the number of an entry of a half: a word's place is e4 e3 e2, that of its pair of
    # bits e6 e5; they shall be e6 e5 e4, and e3 e2.
    words = turned(high.flatten(1), WORD).view(torch.int32).view(-1, 2, 2, 2, ROWS)
    exchange_halves(words[:, :, 0], words[:, :, 1], 4, LOW_4_OF_32)
    exchange_halves(words[:, :, :, 0], words[:, :, :, 1], 2, LOW_2_OF_32)
    words = words.permute(0, 2, 3, 1, 4).contiguous()
    return Packed(
        6,
        256 * blocks.shape[1],
        low,
        words.view(torch.uint8).view(len(blocks), -1),
        EightBitScales(turned(scales.view(torch.int8).flatten(1), 1), turned(_halves(units), 1)),
        16,
    )


TYPES = {
    0: Type("F32", 1, 4, _plain(torch.float32)),
    1: Type("F16", 1, 2, _plain(torch.float16)),
    30: Type("BF16", 1, 2, _plain(torch.bfloat16)),
    8: Type("Q8_0", 32, 34, _q8_0),
    2: Type("Q4_0", 32, 18, _q4_0),
    3: Type("Q4_1", 32, 20, _q4_1),
    6: Type("Q5_0", 32, 22, _q5_0),
    7: Type("Q5_1", 32, 24, _q5_1),
    10: Type("Q2_K", 256, 84, _q2_k),
    11: Type("Q3_K", 256, 110, _q3_k),
    12: Type("Q4_K", 256, 144, _q4_k),
    13: Type("Q5_K", 256, 176, _q5_k),
    14: Type("Q6_K", 256, 210, _q6_k, _q6_k_turned),
    20: Type("IQ4_NL", 32, 18, _iq4_nl),
    23: Type("IQ4_XS", 256, 136, _iq4_xs),
    34: Type("TQ1_0", 256, 54, _tq1_0),
    35: Type("TQ2_0", 256, 66, _tq2_0),
    39: Type("MXFP4", 32, 17, _mxfp4),
}
NAMES = {  # of types that are not supported, for messages
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    40: "NVFP4",
}  # fmt: skip


@cache
def bytes_of_two(kind: Type) -> int:
    """The memory that two packed blocks of a row take, at most: of 32 entries, Packed has none
    alone.
    """
    packed = kind.regroup(torch.zeros(1, 2, kind.size, dtype=torch.uint8))
    assert isinstance(packed, Packed)
    return packed.nbytes
