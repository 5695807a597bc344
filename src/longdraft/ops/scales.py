"""The scales and offsets of a packed matrix, in the forms in which files have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import torch
from torch import Tensor


class Scales(ABC):
    """The scale of each group of each output, and an offset if the format has offsets.

    They are exact as float32.
    """

    has_offset: bool
    together: int  # groups of a row that cannot be taken apart
    digits: int  # binary digits of a scale, at most

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(outputs, groups)."""

    @abstractmethod
    def numbers(self) -> tuple[Tensor, Tensor | None]:
        """Scale and offset, float32 [outputs,groups]."""

    @property
    def is_shortest(self) -> bool:
        """Whether `shortest` returns the same tensors, whatever their numbers are."""
        return True

    def shortest(self) -> Scales:
        """The same numbers in as few bytes as hold them exactly."""
        return self

    @property
    def parts(self) -> dict[str, Tensor]:
        """Its tensors, whose first dimension is outputs, by name."""
        return {f.name: x for f in fields(self) if (x := getattr(self, f.name)) is not None}  # type: ignore[arg-type]

    def of(self, parts: dict[str, Tensor]) -> Scales:
        """The same form, of other tensors."""
        return type(self)(**{f.name: parts.get(f.name) for f in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlainScales(Scales):
    """scale, offset: [outputs,groups], both float32 or both float16; offset may be missing."""

    scale: Tensor
    offset: Tensor | None

    together = 1

    def __post_init__(self) -> None:
        if self.offset is None:
            return
        if self.offset.shape != self.scale.shape or self.offset.dtype != self.scale.dtype:
            raise ValueError(
                f"offsets {tuple(self.offset.shape)} do not fit scales {tuple(self.scale.shape)}"
            )

    @property
    def has_offset(self) -> bool:  # type: ignore[override]
        return self.offset is not None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scale.shape[0], self.scale.shape[1]

    @property
    def digits(self) -> int:  # type: ignore[override]
        return 11 if self.scale.dtype == torch.float16 else 24

    def numbers(self) -> tuple[Tensor, Tensor | None]:
        return self.scale.float(), None if self.offset is None else self.offset.float()

    @property
    def is_shortest(self) -> bool:
        return self.scale.dtype == torch.float16

    def shortest(self) -> PlainScales:
        """The same scales as float16, where that changes no number."""
        if self.is_shortest:
            return self
        scale = self.scale.half()
        same = torch.equal(scale.float(), self.scale.float())
        if self.offset is None:
            return PlainScales(scale, None) if same else self
        offset = self.offset.half()
        same = same and torch.equal(offset.float(), self.offset.float())
        return PlainScales(scale, offset) if same else self


@dataclass(frozen=True)
class SixBitScales(Scales):
    """The scales of Q4_K and Q5_K: eight groups share two halves.

    Their codes of 6 bits are multiplied by these halves.
    scale: uint8 [outputs,12*n]: each 12 bytes hold 8 codes of scales and 8 of minima. Of bytes a,
    b, c [4] each: scale i is a[i]'s low six bits, scale i+4 c[i]'s low half below a[i]'s high two;
    the minima likewise, of b and c's high half.
    unit: float16 [outputs,2*n]: what scales are multiplied with, then minima. An offset is a
    minimum, negated.
    """

    scale: Tensor
    unit: Tensor

    has_offset = True
    together = 8
    digits = 17

    @property
    def shape(self) -> tuple[int, int]:
        return self.scale.shape[0], self.scale.shape[1] // 12 * 8

    def numbers(self) -> tuple[Tensor, Tensor | None]:
        a, b, c = self.scale.unflatten(-1, (-1, 3, 4)).unbind(-2)
        unit, least = self.unit.float().unflatten(-1, (-1, 2))[..., None].unbind(-2)
        scales = torch.cat([a & 63, c & 15 | a >> 2 & 48], -1)
        minima = torch.cat([b & 63, c >> 4 | b >> 2 & 48], -1)
        return (unit * scales).flatten(1), (-least * minima).flatten(1)


@dataclass(frozen=True)
class EightBitScales(Scales):
    """The scales of Q6_K and IQ4_XS: the groups of 256 inputs share a half, which multiplies their
    codes of 8 bits.

    scale: int8 [outputs,together*n]. unit: float16 [outputs,n].
    """

    scale: Tensor
    unit: Tensor

    has_offset = False
    digits = 19

    @property
    def together(self) -> int:  # type: ignore[override]
        return self.scale.shape[-1] // self.unit.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.scale.shape[0], self.scale.shape[1]

    def numbers(self) -> tuple[Tensor, Tensor | None]:
        scales = self.unit.float()[..., None] * self.scale.unflatten(-1, (-1, self.together))
        return scales.flatten(1), None
