"""The tensor types of GGUF files: the size of a block of entries, and the meaning of its bits.

Every type of 8 bits or fewer becomes a Packed with the same values: the bits are regrouped, nothing
is rounded. Types of 4, 5, 6 and 8 bits take as many bytes in memory as in the file. Those of 2 and
3 bits take 8 bits per entry, and so do IQ4_NL and IQ4_XS, whose 4 bits select from a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.ops.packed import Packed, pack
from longdraft.ops.scales import EightBitScales, PlainScales, Scales, SixBitScales

IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class Type:
    """A tensor type: `size` bytes hold `entries` consecutive entries of a row.

    unpack: uint8 [rows,blocks,size] -> the values.
    """

    name: str
    entries: int
    size: int
    unpack: Callable[[Tensor], Packed | Tensor]


def _parts(blocks: Tensor, *sizes: int) -> list[Tensor]:
    """Fields of a block, [rows,blocks,size] each."""
    return [part.contiguous() for part in blocks.split(sizes, -1)]


def _half(field: Tensor) -> Tensor:
    """[rows,blocks,2] bytes -> float32 [rows,blocks]."""
    return field.view(torch.float16).float().squeeze(-1)


def _packed(
    bits: int, codes: Tensor, scale: Tensor, offset: Tensor | None = None, group: int = 32
) -> Packed:
    """codes [rows,...] with entries in order; scale, offset [rows,...], a number for each group."""
    rows = len(codes)
    offset = None if offset is None else offset.reshape(rows, -1).contiguous()
    scales = PlainScales(scale.reshape(rows, -1).contiguous(), offset)
    return pack(bits, codes.reshape(rows, -1).contiguous(), scales.in_halves(), group)


def _plain(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.clone().view(kind).flatten()


def _q4_0(blocks: Tensor) -> Packed:
    d, codes = _parts(blocks, 2, 16)
    return _packed(4, _nibbles(codes), _half(d))


def _q4_1(blocks: Tensor) -> Packed:
    d, m, codes = _parts(blocks, 2, 2, 16)
    return _packed(4, _nibbles(codes), _half(d), _half(m))


def _nibbles(codes: Tensor) -> Tensor:
    """[..,N] bytes -> [..,2N]: all low halves, then all high halves."""
    return torch.cat([codes & 15, codes >> 4], -1)


def _fifth(high: Tensor) -> Tensor:
    """Bit i of 4 bytes [..,4], moved to bit 4 of entry i -> [..,32]."""
    bits = high[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(-2) << 4


def _q5_0(blocks: Tensor) -> Packed:
    d, high, low = _parts(blocks, 2, 4, 16)
    return _packed(5, _nibbles(low) | _fifth(high), _half(d))


def _q5_1(blocks: Tensor) -> Packed:
    d, m, high, low = _parts(blocks, 2, 2, 4, 16)
    return _packed(5, _nibbles(low) | _fifth(high), _half(d), _half(m))


def _q8_0(blocks: Tensor) -> Packed:
    d, codes = _parts(blocks, 2, 32)
    return _packed(8, codes.view(torch.int8), _half(d))


def _iq4_nl(blocks: Tensor) -> Packed:
    d, codes = _parts(blocks, 2, 16)
    return _packed(8, _levels(_nibbles(codes)), _half(d))


def _levels(codes: Tensor) -> Tensor:
    return torch.tensor(IQ4_LEVELS, dtype=torch.int8)[codes.int()]


def _iq4_xs(blocks: Tensor) -> Packed:
    d, high, low, codes = _parts(blocks, 2, 2, 4, 128)  # a scale has 4 low bits and 2 high ones
    low = torch.stack([low & 15, low >> 4], -1).flatten(-2)
    scale = (low | (_pairs(high).transpose(-1, -2).flatten(-2)) << 4).view(torch.int8) - 32
    return _packed(8, _levels(_nibbles(codes.unflatten(-1, (8, 16)))), _half(d)[..., None] * scale)


def _pairs(field: Tensor) -> Tensor:
    """[..,N] bytes -> [..,4,N]: the two lowest bits of each, the next two, and so on."""
    return field[..., None, :] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3


def _q2_k(blocks: Tensor) -> Packed:
    scales, codes, d, dmin = _parts(blocks, 16, 64, 2, 2)
    # of each half of the block, 128 entries
    codes = _pairs(codes.unflatten(-1, (2, 32))).view(torch.int8)
    return _packed(
        8, codes, _half(d)[..., None] * (scales & 15), -_half(dmin)[..., None] * (scales >> 4), 16
    )


def _q3_k(blocks: Tensor) -> Packed:
    high, codes, scales, d = _parts(blocks, 32, 64, 12, 2)
    # bit g is of group g of 32
    third = (high[..., None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 2
    codes = (_pairs(codes.unflatten(-1, (2, 32))).flatten(-3, -2) | third).view(torch.int8) - 4
    low, upper = scales.split((8, 4), -1)  # a scale has 4 low bits and 2 high ones
    scale = (_nibbles(low) | _pairs(upper).flatten(-2) << 4).view(torch.int8) - 32
    scale = _half(d)[..., None] * scale
    return _packed(8, codes, scale, torch.zeros_like(scale), 16)


def _k_scales(d: Tensor, dmin: Tensor, scales: Tensor) -> Scales:
    """The scales of Q4_K and Q5_K."""
    unit = torch.cat([d, dmin], -1).view(torch.float16)
    return SixBitScales(scales.flatten(1), unit.flatten(1).contiguous())


def _halves(codes: Tensor) -> Tensor:
    """Unpack 128 bytes of Q4_K and Q5_K.

    Of each 32, the low halves are one group of entries, the high halves the next.
    """
    return _nibbles(codes.unflatten(-1, (4, 32))).unflatten(-1, (2, 32)).flatten(-3, -2)


def _q4_k(blocks: Tensor) -> Packed:
    d, dmin, scales, codes = _parts(blocks, 2, 2, 12, 128)
    return pack(4, _halves(codes).flatten(1), _k_scales(d, dmin, scales))


def _q5_k(blocks: Tensor) -> Packed:
    d, dmin, scales, high, low = _parts(blocks, 2, 2, 12, 32, 128)
    # bit g is of group g
    fifth = (high[..., None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
    return pack(5, (_halves(low) | fifth).flatten(1), _k_scales(d, dmin, scales))


def _q6_k(blocks: Tensor) -> Packed:
    low, high, scales, d = _parts(blocks, 128, 64, 16, 2)
    low = _nibbles(low.unflatten(-1, (2, 64)))  # of each half of the block, 128 entries
    high = _pairs(high.unflatten(-1, (2, 32)))  # byte i is of entries i, i+32, i+64 and i+96
    codes = low | high.flatten(-2) << 4
    units = d.view(torch.float16).flatten(1)
    return pack(
        6,
        codes.flatten(1),
        EightBitScales(scales.view(torch.int8).flatten(1), units.contiguous()),
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
    14: Type("Q6_K", 256, 210, _q6_k),
    20: Type("IQ4_NL", 32, 18, _iq4_nl),
    23: Type("IQ4_XS", 256, 136, _iq4_xs),
}
NAMES = {  # of types that are not supported, for messages
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
