"""A gated delta net between the native parts of a pass: convolution, gates, recurrence and the norm
of its outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import DeltaNet
from longdraft.backends.features.scans.recurrences import DeltaRule
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.native.step import StepPins
from longdraft.ops import native

FEW = 64  # nodes of a pass whose convolution is too small to divide


@cache
def own_threads() -> Callable[[int], object] | None:
    """Sets how many threads torch's parallel loops have in the calling thread alone; None where
    OpenMP is not found.

    `torch.set_num_threads` also sets MKL's number, which all threads share, and that of threads
    which begin later.
    """
    try:
        found = ctypes.CDLL(None).omp_set_num_threads
    except (OSError, AttributeError, TypeError):  # the last one on Windows
        return None
    before = torch.get_num_threads()
    found(before + 1)
    is_torchs = torch.get_num_threads() == before + 1  # a process can have several copies of OpenMP
    found(before)
    return found if is_torchs else None


@contextmanager
def in_one_thread() -> Generator[None]:
    """Inside, torch's parallel loops run in the calling thread alone; other threads keep theirs.

    Between those of the kernels, such loops make threads wait for each other twice as often, which
    took several times as long as the work where another process computed too.
    """
    set_own = own_threads()
    threads = torch.get_num_threads()
    if set_own is None or threads == 1:
        yield
        return
    set_own(1)
    try:
        yield
    finally:
        set_own(threads)


class GatedDelta:
    """Qwen 3.5's mixer (Gated Delta Networks) without its linear layers; all numbers are float32.

    A node's numbers do not depend on the nodes and rows computed beside it. net: the description
    of Transformers' module.
    """

    def __init__(self, net: DeltaNet, pins: StepPins):
        b = net.b.module.weight.detach()
        a = net.a.module.weight.detach()
        self.keys = (net.key_heads, net.key_dim)
        self.values = (net.value_heads, net.value_dim)
        self.taps = net.convolution.weight.detach().squeeze(1).float()
        self.bias = net.convolution.bias
        self.eps = net.norm.eps
        self.weight = net.norm.module.weight.detach().float()
        self.rate = -net.log_rate.detach().float().exp()
        self.dt_bias = net.step_bias.detach().float()
        self.beta_scale = net.beta_scale
        # outputs of the layer that computes b and a: the kernels' least are 16
        self.rows = max(16, 2 * net.value_heads)
        inputs = b.shape[1]
        gates = torch.zeros(self.rows, inputs, dtype=b.dtype)
        gates[: 2 * net.value_heads] = torch.cat([b, a])
        self.linears = {
            "q": pins.linear(net.qkv.module),
            "k": pins.linear(net.z.module),
            "v": native.Linear(weight=pins.raw(gates), outputs=self.rows, inputs=inputs),
            "o": pins.linear(net.o.module),
        }
        # of what those compute for it
        self.sizes = net.qkv.shape[0], net.z.shape[0], self.rows

    def inputs(self, B: int, W: int) -> Tensor:
        """Memory for what a pass writes when it stops at this layer."""
        return torch.empty(B * W * sum(self.sizes))

    def __call__(self, lib: Any, scans: RecurrentPass, inputs: Tensor, B: int, W: int) -> Tensor:
        """Outputs of the linear layers for B rows of W new nodes -> [B,W,values]."""
        x, z, gates = (
            part.view(B, W, -1) for part in inputs.split([B * W * size for size in self.sizes])
        )
        (K, D), (H, P) = self.keys, self.values
        with in_one_thread() if B * W <= FEW else nullcontext():
            mixed = scans.convolve(x.mT, self.taps, self.bias).mT.contiguous()
        lib.longdraft_silu(mixed.data_ptr(), mixed.numel())
        q, k, v = mixed.split([K * D, K * D, H * P], -1)
        beta, decay = torch.empty(2, B, W, H)
        lib.longdraft_delta_gates(
            gates.data_ptr(), B * W, H, self.rows, self.rate.data_ptr(), self.dt_bias.data_ptr(),
            beta.data_ptr(),
            decay.data_ptr(),
        )  # fmt: skip
        beta *= self.beta_scale
        q = q.view(B, W, K, D)
        k = k.view(B, W, K, D)
        v = v.view(B, W, H, P)
        out = scans.scan(DeltaRule(True), (k, v, decay, beta), (q,)).contiguous()
        lib.longdraft_gated_norm(
            out.data_ptr(),
            z.data_ptr(),
            self.weight.data_ptr(),
            B * W * H,
            P,
            self.eps,
            out.data_ptr(),
        )
        return out
