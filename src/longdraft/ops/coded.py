"""Keys and values of 4 or 8 bits: blocks of 32 numbers of a head, each with its scale.

Keys are encoded after a Walsh-Hadamard transform, which spreads a number that is far larger than
the others over all of them (known from QuaRot, arXiv:2404.00456), and without an offset that all
keys of a head have in common (known from SageAttention, arXiv:2410.02367). The blocks of a value
have one scale, and in 4 bits one offset.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

BLOCK = 32  # numbers that share a scale
BYTES = {8: 2 + BLOCK, 4: 4 + BLOCK // 2}  # of a block


def width(dim: int, bits: int) -> int:
    """Bytes of a key or value of `dim` numbers.

    The last block is filled up by repeating the last number.
    """
    return -(-dim // BLOCK) * BYTES[bits]


def encode(x: Tensor, bits: int) -> Tensor:
    """Encode x [...,D] as uint8 [...,width], with the same bits as ops/native/coded_keys.h.

    A block of 8 bits is its scale (bfloat16), then 32 signed codes; a number is code * scale. A
    block of 4 bits is its scale and its offset (both bfloat16), then 16 bytes, of which byte i has
    number i in its low half and number i + 16 in its high half; a number is code * scale + offset.
    Computed in float32, and rounded once, to the nearest code.
    """
    if not x.shape[-1]:
        return x.to(torch.uint8)
    blocks = _blocks(x.float())
    if bits == 8:
        return _encode_8(blocks, _scale(blocks.abs().amax(-1), 127))
    return _encode_4(blocks, blocks.amin(-1), blocks.amax(-1))


def decode(codes: Tensor, bits: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Decode uint8 [...,width] to the numbers [...,dim] that drafts read."""
    if not dim:
        return codes.to(dtype)
    blocks = codes.unflatten(-1, (-1, BYTES[bits]))
    scale = _number(blocks[..., :2])
    if bits == 8:
        numbers = blocks[..., 2:].view(torch.int8).double() * scale
    else:
        offset = _number(blocks[..., 2:4])
        halves = torch.cat([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
        numbers = halves.double() * scale + offset
    return numbers.flatten(-2)[..., :dim].float().to(dtype)


def encode_keys(x: Tensor, bits: int, offset: Tensor | None = None) -> Tensor:
    """Encode keys x [...,D] as uint8 [...,width]: what is encoded is `hadamard` of x - offset
    [...,D].
    """
    x = x.float()
    return encode(hadamard(x if offset is None else x - offset), bits)


def encode_values(x: Tensor, bits: int) -> Tensor:
    """Encode values x [...,D] as uint8 [...,width]: all blocks of one have one scale and offset."""
    if not x.shape[-1]:
        return encode(x, bits)
    x = x.float()
    if bits == 8:
        return _encode_8(_blocks(x), _scale(x.abs().amax(-1, keepdim=True), 127))
    return _encode_4(_blocks(x), x.amin(-1, keepdim=True), x.amax(-1, keepdim=True))


def decode_keys(
    codes: Tensor, bits: int, dim: int, dtype: torch.dtype, offset: Tensor | None = None
) -> Tensor:
    """Decode uint8 [...,width] to the keys [...,dim] that were encoded with this offset."""
    keys = hadamard(decode(codes, bits, dim, torch.float32))
    return (keys if offset is None else keys + offset).to(dtype)


def hadamard(x: Tensor) -> Tensor:
    """The Walsh-Hadamard transform of x [...,D] in float32, which is its own inverse.

    It is of as many numbers at a time as the largest power of 2 that divides D. Each step is a sum
    of two numbers, so the bits are those of ops/native/hadamard.h.
    """
    D = x.shape[-1]
    size = D & -D
    apart = 1
    while apart < size:
        a, b = x.unflatten(-1, (-1, 2, apart)).unbind(-2)
        x = torch.stack([a + b, a - b], -2).flatten(-3)
        apart *= 2
    return x * (1 / sqrt(size)) if D else x


def _blocks(x: Tensor) -> Tensor:
    """[...,D] -> [...,blocks,BLOCK], filled up with the last number."""
    filled = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], -x.shape[-1] % BLOCK)], -1)
    return filled.unflatten(-1, (-1, BLOCK))


def _encode_8(blocks: Tensor, scale: Tensor) -> Tensor:
    """scale: of each block, or one of all."""
    scale = scale.expand(blocks.shape[:-1])
    codes = _codes(blocks, scale, -127, 127).to(torch.int8).view(torch.uint8)
    return torch.cat([_raw(scale), codes], -1).flatten(-2)


def _encode_4(blocks: Tensor, bottom: Tensor, top: Tensor) -> Tensor:
    """bottom, top: the limits of each block, or those of all."""
    offset = (bottom + 0.0).bfloat16()  # + 0.0: of two zeros the positive one
    scale = _scale(top - offset.float(), 15).expand(blocks.shape[:-1])
    offset = offset.expand(blocks.shape[:-1])
    codes = _codes(blocks - offset.float()[..., None], scale, 0, 15).to(torch.uint8)
    halves = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([_raw(scale), _raw(offset), halves], -1).flatten(-2)


def _scale(span: Tensor, codes: int) -> Tensor:
    return (span / codes).clamp(min=1e-30).bfloat16()


def _codes(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """The codes of numbers, rounded once, as by the kernel's fused operation.

    The product of two float32 is exact in float64.
    """
    return (x.double() * (1 / scale.float()).double()[..., None]).round().clamp(low, high)


def _raw(x: Tensor) -> Tensor:
    return x.contiguous()[..., None].view(torch.uint8)


def _number(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.bfloat16).double()
