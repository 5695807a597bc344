"""Weight matrices of 4 or 8 bits: groups of consecutive inputs share a scale and an offset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # inputs that share a scale, unless a file's format has smaller groups


@dataclass(frozen=True)
class Packed:
    """A matrix [outputs,inputs] whose entries are code * scale + offset, computed in float32 with one rounding.

    codes: of 8 bits int8 [outputs,inputs]; of 4 bits uint8 [outputs,inputs/2], where byte i of the 16 bytes of a group
    holds entry i in its low and entry i+16 in its high half. scale, offset: float32 [outputs,inputs/group].
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
        if self.offset.shape != self.scale.shape or self.codes.shape != (outputs, groups * self.group * self.bits // 8):
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


def quantised(weight: Tensor, bits: int) -> Packed:
    """A matrix [outputs,inputs], inputs a multiple of 32, rounded to the nearest of the codes of its groups.

    Of 8 bits the codes are symmetric about 0. Of 4 bits they span the group's range, which keeps more of a model's
    choices than symmetric codes do.
    """
    w = weight.detach().float()
    groups = w.reshape(len(w), -1, GROUP)
    if bits == 8:
        scale = (groups.abs().amax(-1) / 127).clamp(min=1e-30)
        codes = (groups / scale[..., None]).round().to(torch.int8).view(w.shape)
        return Packed(8, codes, scale, torch.zeros_like(scale))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-30)
    q = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8)
    return Packed(4, (q[..., :16] | q[..., 16:] << 4).reshape(len(w), -1), scale, low.contiguous())
