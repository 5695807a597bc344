"""Weight matrices of 4 or 8 bits: groups of consecutive inputs share a scale and an offset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # inputs that share a scale, unless a file's format has smaller groups
LEAST = 2.0**-20  # as a half, a smaller scale would have fewer than five bits


@dataclass(frozen=True)
class Packed:
    """A matrix [outputs,inputs] whose entries are code * scale + offset, computed in float32 with one rounding.

    codes: of 8 bits int8 [outputs,inputs]; of 4 bits uint8 [outputs,inputs/2], where byte i of the 16 bytes of a group
    holds entry i in its low and entry i+16 in its high half. scale, offset: [outputs,inputs/group], both float32 or
    both float16.
    """

    bits: int
    codes: Tensor
    scale: Tensor
    offset: Tensor
    group: int = GROUP

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.group not in (16, 32) or (self.bits == 4 and self.group != 32):
            raise ValueError(f"{self.bits} bits in groups of {self.group}: choose 4 bits in 32, or 8 in 16 or 32")
        outputs, groups = self.scale.shape
        if (self.offset.shape, self.offset.dtype) != (self.scale.shape, self.scale.dtype) or self.codes.shape != (
            outputs,
            groups * self.group * self.bits // 8,
        ):
            raise ValueError(f"codes {tuple(self.codes.shape)} do not fit scales {tuple(self.scale.shape)}")

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.scale.shape[0], self.scale.shape[1] * self.group

    def dequantised(self) -> Tensor:
        """float32 [outputs,inputs]: the specification of what the kernels compute with."""
        codes = self.codes.view(*self.scale.shape, -1)
        if self.bits == 4:
            codes = torch.cat([codes & 15, codes >> 4], -1)
        exact = codes.double() * self.scale.double()[..., None] + self.offset.double()[..., None]
        return exact.float().view(self.shape)

    def at(self, places: Tensor) -> Tensor:
        """float32: the entries at these places of the matrix, counted row by row."""
        row, column = places // self.shape[1], places % self.shape[1]
        group, i = column // self.group, column % self.group
        if self.bits == 8:
            codes = self.codes[row, column]
        else:
            both = self.codes[row, 16 * group + i % 16]
            codes = torch.where(i < 16, both & 15, both >> 4)
        return (codes.double() * self.scale[row, group].double() + self.offset[row, group].double()).float()


def in_halves(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float16 where that changes no number, else both as float32."""
    halves = scale.half(), offset.half()
    same = all(torch.equal(h.float(), x) for h, x in zip(halves, (scale, offset), strict=True))
    return halves if same else (scale.float(), offset.float())


def quantised(weight: Tensor, bits: int) -> Packed:
    """A matrix [outputs,inputs], inputs a multiple of 32, rounded to the nearest of the codes of its groups.

    Of 8 bits the codes are symmetric about 0. Of 4 bits they span the group's range, which keeps more of a model's
    choices than symmetric codes do. Scales and offsets are halves where their size allows it.
    """
    w = weight.detach().float()
    groups = w.reshape(len(w), -1, GROUP)
    if bits == 8:
        scale = groups.abs().amax(-1) / 127
        scale, offset = _rounded(scale, torch.zeros_like(scale))
        codes = (groups / _divisor(scale)).round().clamp(-127, 127).to(torch.int8).view(w.shape)
        return Packed(8, codes, scale, offset)
    low, high = groups.amin(-1), groups.amax(-1)
    scale, low = _rounded((high - low) / 15, low)
    q = ((groups - low.float()[..., None]) / _divisor(scale)).round().clamp(0, 15).to(torch.uint8)
    return Packed(4, (q[..., :16] | q[..., 16:] << 4).reshape(len(w), -1), scale, low.contiguous())


def _rounded(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest halves, unless a scale is too large or so small that a half would have few bits of it."""
    fits = ((scale == 0) | (scale > LEAST)).all() and torch.maximum(scale, offset.abs()).max() < 65504
    return (scale.half(), offset.half()) if fits else (scale, offset)


def _divisor(scale: Tensor) -> Tensor:
    """[outputs,groups,1]; a group whose entries are equal has a scale of 0, and any divisor will do."""
    return torch.where(scale == 0, 1, scale.float())[..., None]
