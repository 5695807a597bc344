"""Weights as the native kernels read them: addresses of tensors, which are kept alive."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.ops import native
from longdraft.ops.packed import FP4, IQ4, Packed
from longdraft.ops.scales import EightBitScales, Scales, SixBitScales

FORMATS = {
    (4, 32): "BITS_4",
    (5, 32): "BITS_5",
    (6, 16): "BITS_6",
    (8, 32): "BITS_8",
    (8, 16): "BITS_8_OF_16",
}
LEVELS = {FP4: "FP4", IQ4: "IQ4"}
FORMS: dict[type[Scales], str] = {SixBitScales: "SIX_BITS", EightBitScales: "EIGHT_BITS"}


class Pins:
    """Keeps the tensors alive whose addresses the kernels hold."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def raw(self, x: Tensor) -> int:
        x = x.detach().contiguous()
        self._kept.append(x)
        return x.data_ptr()

    def float(self, x: Tensor | None) -> int | None:
        return None if x is None else self.raw(x.float())

    def numbers(self, weight: Tensor, bias: int | None = None) -> native.Linear:
        """A layer of weights [outputs,inputs] that are float32 or bfloat16."""
        outputs, inputs = weight.shape
        return native.Linear(weight=self.raw(weight), bias=bias, outputs=outputs, inputs=inputs)

    def packed(self, p: Packed, bias: int | None, interleaved: bool) -> native.Linear:
        parts = {name: self.raw(part) for name, part in p.parts.items()}
        scale = p.scales.parts["scale"]
        form = native.ScaleForm[
            FORMS.get(type(p.scales)) or ("HALVES" if scale.dtype == torch.float16 else "FLOATS")
        ]
        outputs, inputs = p.shape
        return native.Linear(
            weight=parts["low"],
            bias=bias,
            outputs=outputs,
            inputs=inputs,
            format=native.Format[LEVELS[p.levels] if p.levels else FORMATS[p.bits, p.group]],
            scales=form,
            high=parts.get("high"),
            scale=parts["scale"],
            offset=parts.get("offset"),
            unit=parts.get("unit"),
            interleaved=interleaved,
        )
