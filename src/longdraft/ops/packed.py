"""Weight matrices of 4, 5, 6 or 8 bits.

Groups of consecutive inputs share a scale and perhaps an offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from longdraft.ops.scales import PlainScales, Scales

GROUP = 32  # inputs that share a scale, unless a file's format has smaller groups
BLOCK = 64  # inputs whose codes lie together; a row has whole blocks
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers of E2M1
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
PART = 1 << 20  # entries that are dequantized at a time: they stay in the processor's cache
EXACT = 24  # binary digits of a float32
MIN_HALF_SCALE = 2.0**-20  # as a half, a smaller scale would have fewer than five bits
# bytes of a block: lowest bits, other bits
LOW = {4: 32, 5: 32, 6: 32, 8: 64}
HIGH = {4: 0, 5: 8, 6: 16, 8: 0}
GROUPS = {4: (32,), 5: (32,), 6: (16,), 8: (16, 32)}  # that the kernels know


# (name of a tensor, rows, which part of each, its width) -> the parts
Around = Callable[[str, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Packed:
    """A matrix [outputs,inputs] whose entries are code * scale + offset.

    Entries are computed in float32 with one rounding. Without offsets an entry is (code -
    2^(bits-1)) * scale. Codes of 8 bits are signed in either case. levels: FP4 or IQ4, of which
    codes of 4 bits without offsets select those that are multiplied with scales.
    low: of 8 bits int8 [outputs,room], where room is inputs rounded up to whole blocks of 64; else
    uint8 [outputs,room/2], where byte i of the 32 bytes of a block holds the lowest 4 bits of entry
    i in its low and of entry i+32 in its high half. high: of 5 bits uint8 [outputs,room/8], where
    bit i of a block's 64 is of entry i; of 6 bits uint8 [outputs,room/4], where byte i of a block's
    16 holds two bits each of entries i, i+16, i+32 and i+48, from the lowest on; else None. scales:
    of [outputs,room/group] groups.
    """

    bits: int
    inputs: int
    low: Tensor
    high: Tensor | None
    scales: Scales
    group: int = GROUP
    levels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (
            self.group not in GROUPS.get(self.bits, ())
            or self.inputs % 16
            or (self.bits < 8 and self.inputs % 32)
        ):
            raise ValueError(
                f"{self.bits} bits in groups of {self.group}, {self.inputs} inputs: no "
                "kernel knows this"
            )
        if self.bits == 8 and (self.group == 16) != self.scales.has_offset:
            problem = f"8 bits in groups of {self.group}"
            raise ValueError(f"{problem}: those of 16 have an offset, those of 32 have none")
        if self.bits == 6 and self.scales.has_offset:
            raise ValueError("6 bits have no offset")
        if self.levels is not None and (self.bits != 4 or self.scales.has_offset):
            raise ValueError("levels are selected by 4 bits, and have no offset")
        outputs = len(self.low)
        blocks = -(-self.inputs // BLOCK)
        if self.scales.shape != (outputs, blocks * BLOCK // self.group):
            raise ValueError(
                f"scales {self.scales.shape} do not fit {outputs} outputs of {self.inputs} inputs"
            )
        for part, size in ((self.low, LOW[self.bits]), (self.high, HIGH[self.bits])):
            shape = None if part is None else part.shape
            if shape != ((outputs, blocks * size) if size else None):
                raise ValueError(
                    f"codes of {self.bits} bits do not fit {outputs} outputs of "
                    f"{self.inputs} inputs"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return len(self.low), self.inputs

    @property
    def parts(self) -> dict[str, Tensor]:
        """All tensors that it consists of, by name."""
        codes = {"low": self.low} if self.high is None else {"low": self.low, "high": self.high}
        return codes | self.scales.parts

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.parts.values())

    def of(self, parts: dict[str, Tensor], inputs: int | None = None) -> Packed:
        """The same kind of matrix, of other tensors and perhaps of another number of inputs."""
        rest = {name: x for name, x in parts.items() if name not in ("low", "high")}
        return Packed(
            self.bits,
            inputs or self.inputs,
            parts["low"],
            parts.get("high"),
            self.scales.of(rest),
            self.group,
            self.levels,
        )

    def rows(self, which: Tensor | slice) -> Packed:
        """The matrix of these outputs."""
        return self.of({name: x[which] for name, x in self.parts.items()})

    def dequantized(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """[outputs,inputs]: the specification of the numbers that kernels compute with.

        They are computed in float32, and then rounded to another dtype, that of `out` if given.
        """
        made = self.low.new_empty(self.shape, dtype=dtype) if out is None else out
        rows = max(1, PART // self.room)
        for begin in range(0, len(made), rows):
            some = self.rows(slice(begin, begin + rows))
            scale, offset = some.scales.numbers()
            codes = some.codes().view(*scale.shape, self.group)
            numbers = self._numbers(
                codes, scale[..., None], None if offset is None else offset[..., None]
            )
            made[begin : begin + rows] = numbers.flatten(1)[:, : self.inputs]
        return made

    def _numbers(self, codes: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        """float32: the entries of these codes, rounded once."""
        if offset is None:
            return codes.float().mul_(scale)
        if self.scales.digits + self.bits <= EXACT:  # the product is not rounded
            return codes.float().mul_(scale).add_(offset)
        return codes.double().mul_(scale).add_(offset).float()

    def codes(self) -> Tensor:
        """int8 [outputs,room]: the codes that scales are multiplied with.

        Those of fewer than 8 bits are signed where there are no offsets.
        """
        return self._codes(self.low, self.high)

    def _codes(self, low: Tensor, high: Tensor | None) -> Tensor:
        """The codes of some blocks [..,bytes]."""
        if self.bits == 8:
            return low
        low = low.unflatten(-1, (-1, 32))
        codes = torch.cat([low & 15, low >> 4], -1)
        if high is not None:
            width = self.bits - 4  # bits of an entry
            size = HIGH[self.bits]
            shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=low.device)
            high = high.unflatten(-1, (-1, size))
            if self.bits == 5:
                bits = high[..., None] >> shifts & 1
            else:
                bits = high[..., None, :] >> shifts[:, None] & 3
            codes |= bits.flatten(-2) << 4
        signed = codes.flatten(-2).view(torch.int8)
        if self.levels is not None:
            return torch.tensor(self.levels, dtype=torch.int8, device=low.device)[signed.int()]
        return signed if self.scales.has_offset else signed - (1 << self.bits - 1)

    def entries(self, places: Tensor, around: Around | None = None) -> Tensor:
        """float32: the entries at these places of the matrix, counted row by row.

        around: finds parts of rows where they lie in another order.
        """
        row = places // self.inputs
        column = places % self.inputs
        # inputs whose scales cannot be taken apart
        size = max(BLOCK, self.scales.together * self.group)

        def near(name: str, inputs: int) -> Tensor:
            """The part of a row that holds so many inputs, for each place."""
            x = self.parts[name]
            width = x.shape[1] * inputs // self.room
            if around is not None:
                return around(name, row, column // inputs, width)
            return x.unflatten(1, (-1, width))[row, column // inputs]

        def chosen(numbers: Tensor, index: Tensor) -> Tensor:
            return numbers.gather(1, index[:, None]).squeeze(1)

        high = None if self.high is None else near("high", BLOCK)
        codes = self._codes(near("low", BLOCK), high)
        parts = {name: near(name, size) for name in self.scales.parts}
        scale, offset = self.scales.of(parts).numbers()
        group = column % size // self.group
        return self._numbers(
            chosen(codes, column % BLOCK),
            chosen(scale, group),
            None if offset is None else chosen(offset, group),
        )

    @property
    def room(self) -> int:
        """Inputs, rounded up to whole blocks."""
        return -(-self.inputs // BLOCK) * BLOCK


def pack(
    bits: int,
    codes: Tensor,
    scales: Scales,
    group: int = GROUP,
    levels: tuple[int, ...] | None = None,
) -> Packed:
    """Codes [outputs,inputs] as a Packed with these scales.

    Codes are uint8 or int8, in the order of the entries. Codes of fewer than 8 bits are unsigned.
    The scales are those of the inputs; a last block is filled with zeros.
    """
    outputs, inputs = codes.shape
    missing = -inputs % BLOCK
    if missing:
        codes = F.pad(codes, (0, missing))
        scales = scales.of(
            {name: F.pad(x, (0, missing // group)) for name, x in scales.parts.items()}
        )
    if bits == 8:
        low = codes.view(torch.int8).contiguous()
        return Packed(8, inputs, low, None, scales, group, levels)
    blocks = codes.view(torch.uint8).view(outputs, -1, BLOCK)
    low = (blocks[..., :32] & 15 | blocks[..., 32:] << 4).flatten(1)
    high = None
    if bits > 4:
        width = bits - 4
        shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
        over = blocks >> 4
        if bits == 5:
            parts = over.unflatten(-1, (8, 8))
        else:
            parts = over.unflatten(-1, (4, 16)).transpose(-1, -2)
        high = (parts << shifts).sum(-1, dtype=torch.uint8).flatten(1).contiguous()
    return Packed(bits, inputs, low.contiguous(), high, scales, group, levels)


def quantized(weight: Tensor, bits: int) -> Packed:
    """A matrix [outputs,inputs], rounded to the nearest of the codes of its groups.

    inputs is a multiple of 32. Codes of 8 bits are symmetric about 0. Codes of 4 bits span the
    group's range, which keeps more of a model's choices than symmetric codes do. Scales and offsets
    are halves where their size allows it.
    """
    w = weight.detach().float()
    groups = w.reshape(len(w), -1, GROUP)
    if bits == 8:
        scale = groups.abs().amax(-1) / 127
        scale, _ = _rounded(scale, torch.zeros_like(scale))
        codes = (groups / _divisor(scale)).round().clamp(-127, 127).to(torch.int8).view(w.shape)
        return pack(8, codes, PlainScales(scale, None))
    low = groups.amin(-1)
    high = groups.amax(-1)
    scale, low = _rounded((high - low) / 15, low)
    q = ((groups - low.float()[..., None]) / _divisor(scale)).round().clamp(0, 15).to(torch.uint8)
    return pack(4, q.view(w.shape), PlainScales(scale, low.contiguous()))


def _rounded(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest halves, unless a scale is too large or too small for a half."""
    precise = ((scale == 0) | (scale > MIN_HALF_SCALE)).all()
    fits = precise and torch.maximum(scale, offset.abs()).max() < 65504
    return (scale.half(), offset.half()) if fits else (scale, offset)


def _divisor(scale: Tensor) -> Tensor:
    """The divisors [outputs,groups,1] of these scales.

    A group whose entries are equal has a scale of 0, and any divisor will do.
    """
    return torch.where(scale == 0, 1, scale.float())[..., None]
