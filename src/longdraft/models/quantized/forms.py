"""The smallest packed form that holds the entries of a quantized matrix exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.ops.packed import GROUP, Packed, pack
from longdraft.ops.scales import PlainScales

NARROW = 16  # inputs of a group of 8 bits that has an offset


@dataclass(frozen=True)
class PackedForm:
    """A packed form without numbers: bits of a code, inputs of a group, and scales in `numbers`.

    levels: those of Packed.
    """

    bits: int
    group: int = GROUP
    has_offset: bool = False
    numbers: torch.dtype = torch.float16
    levels: tuple[int, ...] | None = None

    def outline(self, outputs: int, inputs: int) -> Packed:
        """A matrix on the device "meta"."""
        with torch.device("meta"):
            codes = torch.empty(outputs, inputs, dtype=torch.uint8)
            scale = torch.empty(outputs, inputs // self.group, dtype=self.numbers)
        offset = torch.empty_like(scale) if self.has_offset else None
        return pack(self.bits, codes, PlainScales(scale, offset), self.group, self.levels)


SUMS = {4: PackedForm(4, has_offset=True), 8: PackedForm(8, NARROW, True, torch.float32)}


def form_of_differences(bits: int, group: int, symmetric: bool) -> PackedForm | None:
    """The usual form of `differences` of codes of so many bits; None: they are unpacked.

    group: -1 for all inputs, of which there are whole groups of 32.
    """
    if group > 0 and group % GROUP:
        return None
    if bits == 4:
        return PackedForm(4 if symmetric else 5)
    return PackedForm(8) if symmetric else SUMS[8]


def form_of_sums(bits: int, group: int) -> PackedForm | None:
    """The usual form of `sums`; None: they are unpacked."""
    form = SUMS[bits]
    return None if group % form.group else form


def codes_of(words: Tensor, bits: int) -> Tensor:
    """int32 [rows,N] -> uint8 [rows,N*32/bits]: codes of 4 or 8 bits, from the lowest bits on.

    words: or uint8 [rows,N], whose bytes hold as many codes each.
    """
    parts = words.contiguous().view(torch.uint8)
    return parts if bits == 8 else torch.stack([parts & 15, parts >> 4], -1).flatten(-2)


def differences(codes: Tensor, zeros: Tensor, scale: Tensor, group: int) -> Packed | Tensor:
    """The matrix of entries (code - zero) * scale, float32 where no packed form holds it exactly.

    codes uint8 [outputs,inputs]; zeros int16 and scale float32 [outputs,groups], of `group`
    consecutive inputs each, the last one perhaps of fewer. Differences that fit into 4, 5 or 8 bits
    need no offset; zeros of 8 bits become offsets of groups of 16.
    """
    inputs = codes.shape[1]
    if inputs % GROUP or group % GROUP:
        return unpacked(codes, zeros, scale, torch.arange(inputs) // group)
    kind = torch.int8 if int(zeros.max()) <= 16 and int(codes.max()) <= 15 else torch.int16
    each = spread(zeros.to(kind), group, inputs, GROUP)[..., None]
    steps = codes.to(kind).unflatten(1, (-1, GROUP)).sub_(each).flatten(1)
    low, high = (int(x) for x in steps.aminmax())
    for bits in (4, 5, 8):
        half = 1 << bits - 1
        if -half <= low and high < half:
            scales = PlainScales(spread(scale, group, inputs, GROUP), None).shortest()
            made = steps.to(torch.int8) if bits == 8 else steps.add_(half).to(torch.uint8)
            return pack(bits, made, scales)
    return sums(codes, scale, -zeros * scale.double(), group)


def sums(codes: Tensor, scale: Tensor, offset: Tensor, group: int) -> Packed | Tensor:
    """The matrix of entries code * scale + offset, float32 where no packed form holds it exactly.

    codes as in `differences`, of 4 bits if none is above 15; offset float64.
    """
    inputs = codes.shape[1]
    wide = bool((codes > 15).any())
    width = NARROW if wide else GROUP
    middle = offset + 128 * scale.double() if wide else offset
    exact = middle.float()
    if inputs % GROUP or group % width or not torch.equal(exact.double(), middle):
        index = torch.arange(inputs) // group
        return (codes * scale.double()[:, index] + offset[:, index]).float()
    parts = (spread(x, group, inputs, width) for x in (scale, exact))
    scales = PlainScales(*parts).shortest()
    return pack(8, codes ^ 128, scales, NARROW) if wide else pack(4, codes, scales)


def spread(numbers: Tensor, group: int, inputs: int, width: int) -> Tensor:
    """[outputs,groups] -> [outputs,inputs/width]: a number for each `width` inputs."""
    return numbers.repeat_interleave(group // width, 1)[:, : inputs // width].contiguous()


def unpacked(codes: Tensor, zeros: Tensor, scale: Tensor, index: Tensor) -> Tensor:
    """float32: entries (code - zero) * scale, rounded once. index [inputs]: the inputs' groups."""
    return (codes.to(torch.int16) - zeros[:, index]).float().mul_(scale[:, index])
