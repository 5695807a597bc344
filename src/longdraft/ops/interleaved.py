"""Packed matrices with sixteen rows interleaved, as the kernels for 8-bit inputs read them.

A vector then holds four codes of each of sixteen outputs, so all products of a group are summed in
one element of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longdraft.ops.packed import GROUP, Packed
from longdraft.ops.scales import SixBitScales

ROWS = 16  # outputs that lie together
WORD = 4  # bytes of codes, or of codes of scales, of one output that stay together
PART = 1 << 12  # outputs whose high bits are rearranged at a time


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
    return p.of({name: _turned(x, _piece(p, name)) for name, x in parts.items()})


def apart(p: Packed) -> Packed:
    """The inverse of `together`."""
    parts = {name: _turned_back(x, _piece(p, name)) for name, x in p.parts.items()}
    if p.high is not None:
        parts["high"] = _in_order(parts["high"], p.bits - 4)
    return p.of(parts)


def rounded(x: Tensor) -> Tensor:
    """Inputs [..,n] as the kernels round them: to 127 steps of the largest of each 32, float32."""
    groups = F.pad(x.float(), (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    size = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    codes = (groups.double() * (1 / size)).round()  # rounded once, as a fused product is
    return (codes.float() * size).flatten(-2)[..., : x.shape[-1]]


def _piece(p: Packed, name: str) -> int:
    in_words = name in ("low", "high") or (name == "scale" and isinstance(p.scales, SixBitScales))
    return WORD if in_words else 1


def _turned(x: Tensor, piece: int) -> Tensor:
    return x.view(len(x) // ROWS, ROWS, -1, piece).transpose(1, 2).contiguous().view(x.shape)


def _turned_back(x: Tensor, piece: int) -> Tensor:
    return x.view(len(x) // ROWS, -1, ROWS, piece).transpose(1, 2).contiguous().view(x.shape)


def _in_words(high: Tensor, width: int) -> Tensor:
    """The high bits of ops/packed.py in the order of `together`, still row by row.

    width: bits of each code.
    """
    return torch.cat([_bytes(_codes(part, width), width) for part in high.split(PART)])


def _in_order(words: Tensor, width: int) -> Tensor:
    """The inverse of `_in_words`."""
    made = []
    for part in words.split(PART):
        bits = part.view(len(part), -1, 1, WORD) >> _shifts(part, width)[:, None] & (1 << width) - 1
        codes = bits.view(len(part), -1, 64)
        if width == 1:
            lanes = codes.unflatten(-1, (8, 8))
        else:
            lanes = codes.unflatten(-1, (4, 16)).transpose(-1, -2)
        made.append((lanes << _shifts(part, width)).sum(-1, dtype=torch.uint8).flatten(1))
    return torch.cat(made)


def _codes(high: Tensor, width: int) -> Tensor:
    """High bits as codes [n,blocks,64], in the order of the entries."""
    bits = high.unflatten(-1, (-1, 8 * width))[..., None] >> _shifts(high, width) & (1 << width) - 1
    return (bits if width == 1 else bits.transpose(-1, -2)).flatten(-2)


def _bytes(codes: Tensor, width: int) -> Tensor:
    words = codes.view(len(codes), -1, 8 // width, WORD)
    return (words << _shifts(codes, width)[:, None]).sum(-2, dtype=torch.uint8).flatten(1)


def _shifts(x: Tensor, width: int) -> Tensor:
    return torch.arange(0, 8, width, dtype=torch.uint8, device=x.device)
