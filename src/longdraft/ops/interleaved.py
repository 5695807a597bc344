"""Packed matrices with sixteen rows interleaved, as the kernels for 8-bit inputs read them.

A vector then holds four codes of each of sixteen outputs, so all products of a group are summed in
one element of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from longdraft.ops.bits import exchange_halves, exchanged
from longdraft.ops.packed import GROUP, Packed
from longdraft.ops.scales import SixBitScales

ROWS = 16  # outputs that lie together
WORD = 4  # bytes of codes, or of codes of scales, of one output that stay together
PART = 1 << 10  # outputs whose high bits are rearranged at a time
# Exchanges of digits that bring bits of `high` into the order of words: with 5 bits per code, the
# bit of entry 8j+4h+c of 32 goes to position 8c+2j+h.
LOW_4 = 0x0F0F0F0F0F0F0F0F  # of each byte of a word, the four lowest bits
SWAPS = ((0, 1), (0, 2), (1, 3), (2, 4))


@dataclass(frozen=True)
class Interleaved:
    """A matrix of packed weights: `stored` is the result of `together`."""

    stored: Packed


def fits(p: Packed) -> bool:
    return p.shape[0] % ROWS == 0


def together(p: Packed) -> Packed:
    """The same tensors in interleaved order.

    The result has the shape of a Packed, but only the kernels and `apart` understand it.
    For each sixteen outputs: words of four codes, output by output, in the order of the inputs (of
    fewer than 8 bits a byte still holds entries i and i+32 of its block). A byte of `high` has the
    other bits of codes at the same place in successive words: 1 bit of eight, or 2 bits of four.
    Scales and units are output by output, the codes of SixBitScales in words.
    """
    parts = p.parts
    if p.high is not None:
        parts = parts | {"high": _in_words(p.high, p.bits - 4)}
    return p.of({name: turned(x, _piece(p, name)) for name, x in parts.items()})


def put_together(p: Packed) -> None:
    """Bring a matrix's own tensors into this order, a part in the processor's cache at a time."""
    for begin in range(0, p.shape[0], PART):
        part = p.rows(slice(begin, begin + PART))
        for mine, turned in zip(part.parts.values(), together(part).parts.values(), strict=True):
            mine.copy_(turned)


def apart(p: Packed) -> Packed:
    """The inverse of `together`."""
    parts = {name: _turned_back(x, _piece(p, name)) for name, x in p.parts.items()}
    if p.high is not None:
        parts["high"] = _in_order(parts["high"], p.bits - 4)
    return p.of(parts)


def entries(p: Packed, places: Tensor) -> Tensor:
    """Packed.entries of a matrix that was put together, most of which is not read."""

    def around(name: str, row: Tensor, part: Tensor, width: int) -> Tensor:
        x = p.parts[name]
        piece = _piece(p, name)
        grid = _pieces(x, piece).view(len(x) // ROWS, -1, ROWS)
        count = width // piece
        columns = (part * count)[:, None] + torch.arange(count, device=x.device)
        found = grid[row[:, None] // ROWS, columns, row[:, None] % ROWS].view(x.dtype)
        return _in_order(found, p.bits - 4) if name == "high" else found

    return p.entries(places, around)


def rounded(x: Tensor) -> Tensor:
    """Inputs [..,n] as the kernels round them: to 127 steps of the largest of each 32, float32."""
    groups = F.pad(x.float(), (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    size = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    codes = (groups.double() * (1 / size)).round()  # rounded once, as a fused product is
    return (codes.float() * size).flatten(-2)[..., : x.shape[-1]]


def _piece(p: Packed, name: str) -> int:
    in_words = name in ("low", "high") or (name == "scale" and isinstance(p.scales, SixBitScales))
    return WORD if in_words else 1


def turned(x: Tensor, piece: int) -> Tensor:
    """The pieces of each sixteen rows, beside each other."""
    return _transposed(x, ROWS, x.shape[1] // piece, piece)


def _turned_back(x: Tensor, piece: int) -> Tensor:
    return _transposed(x, x.shape[1] // piece, ROWS, piece)


def _transposed(x: Tensor, rows: int, columns: int, piece: int) -> Tensor:
    """Each sixteen outputs [rows,columns] of pieces, transposed."""
    grid = _pieces(x, piece).reshape(len(x) // ROWS, rows, columns)
    return grid.transpose(1, 2).contiguous().view(x.dtype).view(x.shape)


def _pieces(x: Tensor, piece: int) -> Tensor:
    return x.view(torch.int32) if piece == WORD and x.element_size() == 1 else x


def _in_words(high: Tensor, width: int) -> Tensor:
    """The high bits of ops/packed.py in the order of `together`, still row by row.

    width: bits of each code.
    """
    return torch.cat([_reordered(part, width, SWAPS) for part in high.split(PART)])


def _in_order(words: Tensor, width: int) -> Tensor:
    """The inverse of `_in_words`."""
    return torch.cat([_reordered(part, width, SWAPS[::-1]) for part in words.split(PART)])


def _reordered(high: Tensor, width: int, swaps: Sequence[tuple[int, int]]) -> Tensor:
    if width == 2:
        return _pairs_transposed(high)
    words = high.contiguous().view(torch.int32)
    for low, upper in swaps:
        words = exchanged(words, low, upper)
    return words.view(torch.uint8)


def _pairs_transposed(high: Tensor) -> Tensor:
    """Transpose pairs of bits in each 16 bytes, four words of four: pair i of word j becomes pair
    j of word i.
    """
    # of words 0 and 1, and of words 2 and 3
    words = exchanged(high.contiguous().view(torch.int64), 1, 5)
    pairs = words.unflatten(-1, (-1, 2))
    exchange_halves(pairs[..., 0], pairs[..., 1], 4, LOW_4)
    return words.view(torch.uint8)
