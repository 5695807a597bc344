"""Rearrangements of packed weights entry by entry, which the fast ones must equal bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.ops.interleaved import ROWS, WORD
from longdraft.ops.packed import Packed, pack
from longdraft.ops.scales import EightBitScales, PlainScales, SixBitScales


def bits_of(field: Tensor, width: int) -> Tensor:
    """[..,n] bytes -> [..,8/width,n]: the lowest bits of each, then the next ones, and so on."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return field[..., None, :] >> shifts & (1 << width) - 1


def halves(field: Tensor) -> Tensor:
    return field.clone(memory_format=torch.contiguous_format).view(torch.float16).flatten(1)


def regrouped(kind: str, blocks: Tensor) -> Packed:
    """uint8 [rows,blocks,size] of a type of 4, 5, 6 or 8 bits, through the code of each entry."""
    bits = int(kind[1])
    if kind == "Q6_K":
        low = bits_of(blocks[..., :128].unflatten(-1, (2, 64)), 4).flatten(-2)
        high = bits_of(blocks[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(-2)
        scales = blocks[..., 192:208].flatten(1).view(torch.int8)
        codes = (low | high << 4).flatten(1)
        return pack(bits, codes, EightBitScales(scales, halves(blocks[..., 208:])), 16)
    if kind in ("Q4_K", "Q5_K"):
        codes = bits_of(blocks[..., -128:].unflatten(-1, (4, 32)), 4).flatten(-3)
        if kind == "Q5_K":
            codes |= bits_of(blocks[..., 16:48], 1).flatten(-2) << 4
        scales = SixBitScales(blocks[..., 4:16].flatten(1), halves(blocks[..., :4]))
        return pack(bits, codes.flatten(1), scales)
    offset = halves(blocks[..., 2:4]) if kind.endswith("_1") else None
    scales = PlainScales(halves(blocks[..., :2]), offset)
    if kind == "Q8_0":
        return pack(bits, blocks[..., 2:].flatten(1).view(torch.int8), scales)
    codes = bits_of(blocks[..., -16:], 4).flatten(-2)
    if bits == 5:
        fifth = blocks[..., -20:-16, None] >> torch.arange(8, dtype=torch.uint8) & 1
        codes |= fifth.flatten(-2) << 4
    return pack(bits, codes.flatten(1), scales)


def together(p: Packed) -> dict[str, Tensor]:
    """The parts of ops.interleaved.together, through the high bits of each code."""
    made = dict[str, Tensor]()
    for name, x in p.parts.items():
        piece = 1
        if name in ("low", "high") or (name == "scale" and isinstance(p.scales, SixBitScales)):
            piece = WORD
        if name == "high":
            width = p.bits - 4
            over = high_codes(x, width).view(len(x), -1, 8 // width, WORD)
            shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
            x = (over << shifts).sum(-2, dtype=torch.uint8).flatten(1)
        grid = x.reshape(len(x) // ROWS, ROWS, -1, piece).transpose(1, 2)
        made[name] = grid.reshape(x.shape)
    return made


def high_codes(high: Tensor, width: int) -> Tensor:
    """[rows,entries]: the high bits of each code, as ops/packed.py describes them."""
    if width == 1:
        return (high[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1)
    return bits_of(high.unflatten(-1, (-1, 16)), 2).flatten(1)


def dequantized(p: Packed) -> Tensor:
    """float32: each entry in double precision, rounded once."""
    scale, offset = p.scales.numbers()
    codes = p.codes().view(*scale.shape, p.group).double()
    exact = codes * scale.double()[..., None]
    if offset is not None:
        exact = exact + offset.double()[..., None]
    return exact.float().flatten(1)[:, : p.inputs]
