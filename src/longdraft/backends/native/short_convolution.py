"""A short convolution between the native parts of a pass (LFM2)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import ShortConvolution
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.native.gated_delta import FEW, in_one_thread
from longdraft.backends.native.step_pins import StepPins


class GatedConvolution:
    """A mixer without its linear layers: c * convolution(b * x) of the three parts of its input.

    A node's numbers do not depend on the nodes and rows computed beside it, and are float32.
    """

    def __init__(self, part: ShortConvolution, pins: StepPins):
        self.linears = {"q": pins.linear(part.inputs.module), "o": pins.linear(part.o.module)}
        self.size = part.inputs.shape[0]
        self.taps = part.convolution.weight.detach().squeeze(1).float()
        bias = part.convolution.bias
        self.bias = None if bias is None else bias.detach().float()

    def inputs(self, B: int, W: int) -> Tensor:
        """Memory for what a pass writes when it stops at this layer."""
        return torch.empty(B * W * self.size)

    def __call__(self, lib: Any, scans: RecurrentPass, inputs: Tensor, B: int, W: int) -> Tensor:
        """Outputs of the linear layer for B rows of W new nodes -> [B,W,width]."""
        with in_one_thread() if B * W <= FEW else nullcontext():
            b, c, x = inputs.view(B, W, 3, -1).unbind(2)
            return (c * scans.convolve((b * x).mT, self.taps, self.bias).mT).contiguous()
