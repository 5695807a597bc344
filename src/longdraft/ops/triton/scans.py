"""Functions that launch the Triton kernels of recurrent layers (scan_kernels.py)."""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor

from longdraft.ops.scan import Order, Terms
from longdraft.ops.triton.scan_kernels import convolve_paths, scan_steps

# columns of all heads below which a program takes fewer of them, so that all multiprocessors have
# one
FEW = 4096
CHANNELS = 256  # of a convolution, in a program


def sizes(terms: Terms) -> dict:
    """The compile-time constants of scan_steps.

    They depend on the layer, and not on the number of tokens.
    """
    heads = terms.v.shape[1]
    N = terms.k.shape[2]
    P = terms.v.shape[2]
    return {
        "GROUP": heads // terms.k.shape[1], "N": N, "P": P, "WIDE": triton.next_power_of_2(N),
        "BLOCK": min(triton.next_power_of_2(P), 16 if heads * P < FEW else 32),
        "DELTA": terms.beta is not None,
        "NORMALIZED": terms.normalized, "CHANNELS": terms.gate.ndim == 3,
    }  # fmt: skip


def along(terms: Terms, state: Tensor | None, order: Order) -> tuple[Tensor, Tensor]:
    """See ops/scan.along.

    Without queries the same kernel runs, so that a replay leaves the same bits.
    """
    k = _adjacent(terms.k)
    v = _adjacent(terms.v)
    q = k if terms.q is None else _adjacent(terms.q)
    gate = _adjacent_tokens(terms.gate)
    beta = None if terms.beta is None else _adjacent_tokens(terms.beta)
    heads = v.shape[1]
    first = len(k) - (0 if terms.q is None else len(q))
    new = torch.empty if order.all else torch.zeros
    out = new(len(k) - first, heads, v.shape[2], dtype=torch.float32, device=v.device)
    saved = torch.empty(
        order.saved, heads, k.shape[2], v.shape[2], dtype=torch.float32, device=v.device
    )
    state = saved.new_zeros(saved.shape[1:]) if state is None else state
    constants = sizes(terms)
    scan_steps[(heads, triton.cdiv(v.shape[2], constants["BLOCK"]))](
        k, v, gate, beta, q, state, order.steps, out, saved, len(order.steps), first, k.stride(0),
        k.stride(1),
        v.stride(0), v.stride(1), gate.stride(0), 0 if beta is None else beta.stride(0),
        q.stride(0), q.stride(1),
        terms.scale, **constants,
    )  # fmt: skip
    return out, saved[: order.kept].clone() if 0 < order.kept < order.saved else saved[: order.kept]


def _adjacent(x: Tensor) -> Tensor:
    """x [T,H,D] with the numbers of a head side by side."""
    return x if x.stride(2) == 1 else x.contiguous()


def _adjacent_tokens(x: Tensor) -> Tensor:
    """x [T,..] with the numbers of a token side by side."""
    return x if x[0].is_contiguous() else x.contiguous()


def convolve(
    state: Tensor | None, x: Tensor, windows: Tensor, taps: Tensor, bias: Tensor | None
) -> Tensor:
    """Windows of a state followed by inputs, times taps -> [W,C] in the dtype of x.

    windows [W,K] of state [K-1,C] followed by x [T,C]; taps [C,K].
    state None: it is zero.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    channels, K = taps.shape
    out = torch.empty(len(windows), channels, dtype=x.dtype, device=x.device)
    convolve_paths[(len(windows), triton.cdiv(channels, CHANNELS))](
        state, x, windows, taps.contiguous(), bias, out, channels, x.stride(0),
        K, state is not None, bias is not None, CHANNELS,
    )  # fmt: skip
    return out
