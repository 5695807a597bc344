"""A Mamba-2 mixer between the native parts of a pass."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import MambaTwo
from longdraft.backends.features.scans.recurrences import StateSpace
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.native.gated_delta import FEW, in_one_thread
from longdraft.backends.native.step_pins import StepPins


class SelectiveScan:
    """A mixer without its linear layers: convolution, time steps, state space and gated norm.

    A node's numbers do not depend on the nodes and rows computed beside it, and are float32.
    """

    def __init__(self, part: MambaTwo, pins: StepPins):
        self.linears = {"q": pins.linear(part.inputs.module), "o": pins.linear(part.o.module)}
        self.part = part
        inner = part.heads * part.dim
        keys = part.groups * part.states
        self.sizes = inner, inner + 2 * keys, part.heads
        self.mixed_sizes = inner, keys, keys
        self.taps = part.convolution.weight.detach().squeeze(1).float()
        bias = part.convolution.bias
        self.bias = None if bias is None else bias.detach().float()
        self.scan = StateSpace(-part.log_rate.detach().float().exp())
        self.step_bias = part.step_bias.detach().float()
        self.skip = part.skip.detach().float()
        self.weight = part.norm.module.weight.detach().float()

    def inputs(self, B: int, W: int) -> Tensor:
        """Memory for what a pass writes when it stops at this layer."""
        return torch.empty(B * W * sum(self.sizes))

    def __call__(self, lib: Any, scans: RecurrentPass, inputs: Tensor, B: int, W: int) -> Tensor:
        """Outputs of the linear layer for B rows of W new nodes -> [B,W,heads * dim]."""
        part = self.part
        z, x, dt = (t.contiguous() for t in inputs.view(B, W, -1).split(self.sizes, -1))
        with in_one_thread() if B * W <= FEW else nullcontext():
            mixed = scans.convolve(x.mT, self.taps, self.bias).mT.contiguous()
        lib.longdraft_silu(mixed.data_ptr(), mixed.numel())
        values, keys, queries = (t.contiguous() for t in mixed.split(self.mixed_sizes, -1))
        steps = torch.empty(B, W, part.heads)
        lib.longdraft_time_steps(
            dt.data_ptr(), B * W, part.heads, self.step_bias.data_ptr(), *part.limits,
            steps.data_ptr(),
        )  # fmt: skip
        values = values.view(B, W, part.heads, part.dim)
        keys = keys.view(B, W, part.groups, part.states)
        queries = queries.view(B, W, part.groups, part.states)
        out = scans.scan(self.scan, (values, steps, keys), (queries,))
        out = (out + self.skip[:, None] * values).contiguous()
        lib.longdraft_norm_of_gated(
            out.data_ptr(), z.data_ptr(), self.weight.data_ptr(), B * W, part.norm_groups,
            out[0, 0].numel() // part.norm_groups, part.norm.eps, out.data_ptr(),
        )  # fmt: skip
        return out
