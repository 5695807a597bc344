"""Triton kernels of recurrent layers.

A state along the paths of a tree, and a causal convolution along them. A state is updated by one
token after the other in float32, in registers. The same instructions
compute drafts, verifications and replays: they depend on the layer, and not on the number of
tokens, on a tree or on a state before.
"""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unit(x):
    """x [N] divided by its length."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit(do_not_specialize=["steps", "first"])
def scan_steps(
    k, v, gate, beta, q, state, order, out, saved, steps, first, k_token, k_head, v_token, v_head,
    gate_token,
    beta_token, q_token, q_head, scale,
    GROUP: tl.constexpr, N: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    DELTA: tl.constexpr, NORMALIZED: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Run a state along the steps; one program per head and block of columns.

    See ops/scan.py. out [W,H,P] of tokens from `first` on, saved [slots,H,N,P].
    gate [T,H], or [T,H,N] with CHANNELS.
    """
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    n = tl.arange(0, WIDE)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (n < N)[:, None] & (p < P)[None, :]
    place = head * N * P + n[:, None] * P + p[None, :]
    now = tl.zeros([WIDE, BLOCK], tl.float32)
    for i in range(steps):
        token = tl.load(order + 3 * i)
        before = tl.load(order + 3 * i + 1)
        save = tl.load(order + 3 * i + 2)
        if before < -1:
            now = tl.load(state + place, mask=here, other=0.0)
        if before >= 0:
            now = tl.load(
                saved + before.to(tl.int64) * (heads * N * P) + place, mask=here, other=0.0
            )
        t = token.to(tl.int64)
        key = tl.load(k + t * k_token + head // GROUP * k_head + n, mask=n < N, other=0.0).to(
            tl.float32
        )
        new = tl.load(v + t * v_token + head * v_head + p, mask=p < P, other=0.0).to(tl.float32)
        if NORMALIZED:
            key = unit(key)
        if CHANNELS:
            decay = tl.load(gate + t * gate_token + head * N + n, mask=n < N, other=0.0).to(
                tl.float32
            )
            now = now * tl.exp(decay)[:, None]
        else:
            now = now * tl.exp(tl.load(gate + t * gate_token + head).to(tl.float32))
        if DELTA:
            new = (new - tl.sum(now * key[:, None], 0)) * tl.load(beta + t * beta_token + head).to(
                tl.float32
            )
        now = now + key[:, None] * new[None, :]
        asked = tl.where(token >= first, 1, 0)
        spot = (token - first).to(tl.int64)
        query = tl.load(
            q + spot * q_token + head // GROUP * q_head + n, mask=n < N * asked, other=0.0
        )
        query = query.to(tl.float32)
        if NORMALIZED:
            query = unit(query)
        mixed = tl.sum(now * (query * scale)[:, None], 0)
        tl.store(out + (spot * heads + head) * P + p, mixed, mask=p < P * asked)
        if save >= 0:
            tl.store(saved + save.to(tl.int64) * (heads * N * P) + place, now, mask=here)
            tl.debug_barrier()  # other threads of the program may load it


@triton.jit
def convolve_paths(
    state, x, windows, taps, bias, out, channels, x_token,
    K: tl.constexpr, HELD: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A causal convolution; one program per node and block of channels.

    windows [W,K] of state [K-1,C] and, behind it, x [T,C]; taps [C,K] -> out [W,C]. Without HELD
    the state is zero.
    """
    node = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = c < channels
    total = (
        tl.load(bias + c, mask=real, other=0.0).to(tl.float32)
        if BIASED
        else tl.zeros([BLOCK], tl.float32)
    )
    for i in range(K):
        spot = tl.load(windows + node * K + i)
        late = (spot - (K - 1)).to(tl.int64)
        value = tl.load(
            x + late * x_token + c, mask=c < tl.where(late >= 0, channels, 0), other=0.0
        ).to(tl.float32)
        if HELD:
            early = tl.load(
                state + spot * channels + c, mask=c < tl.where(late < 0, channels, 0), other=0.0
            )
            value += early.to(tl.float32)  # one of the two is zero
        total += value * tl.load(taps + c * K + i, mask=real, other=0.0).to(tl.float32)
    tl.store(out + node * channels + c, total.to(out.dtype.element_ty), mask=real)
