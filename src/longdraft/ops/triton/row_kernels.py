"""Triton kernels that go over rows one by one: rotations, gates, norms, keyed noise."""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_heads(
    x, cos, sin, out, x_row, x_head, x_node, c_row, c_node, W: tl.constexpr, HALF: tl.constexpr,
    WIDE: tl.constexpr
):  # fmt: skip
    """Rotate heads as Llama does; one program per node, head and row b.

    x [B,H,W,2*HALF] rotated by cos, sin [B,W,2*HALF] -> out. Products and their sum are each
    rounded to x's dtype.
    """
    w = tl.program_id(0)
    head = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    cols = tl.arange(0, WIDE)
    kind = x.dtype.element_ty
    there = cols < HALF
    own = b * x_row + head * x_head + w * x_node + cols
    angle = b * c_row + w * c_node + cols
    left = tl.load(x + own, mask=there).to(tl.float32)
    right = tl.load(x + own + HALF, mask=there).to(tl.float32)
    c = tl.load(cos + angle, mask=there).to(tl.float32)
    s = tl.load(sin + angle, mask=there).to(tl.float32)
    d = tl.load(cos + angle + HALF, mask=there).to(tl.float32)
    t = tl.load(sin + angle + HALF, mask=there).to(tl.float32)
    first = (left * c).to(kind).to(tl.float32) - (right * s).to(kind).to(tl.float32)
    second = (right * d).to(kind).to(tl.float32) + (left * t).to(kind).to(tl.float32)
    row = out + ((b * tl.num_programs(1) + head) * W + w) * 2 * HALF + cols
    tl.store(row, first.to(kind), mask=there)
    tl.store(row + HALF, second.to(kind), mask=there)


@triton.jit
def gate_values(gate, up, out, count, WIDE: tl.constexpr):
    """Program (block of numbers): silu(gate), rounded to its dtype, times up."""
    i = tl.program_id(0).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    there = i < count
    kind = gate.dtype.element_ty
    x = tl.load(gate + i, mask=there, other=0.0).to(tl.float32)
    opened = (x / (1.0 + tl.exp(-x))).to(kind).to(tl.float32)
    tl.store(
        out + i,
        (opened * tl.load(up + i, mask=there, other=0.0).to(tl.float32)).to(kind),
        mask=there,
    )


@triton.jit
def rms_rows(x, weight, out, eps, D: tl.constexpr, WIDE: tl.constexpr):
    """Llama's norm; one program per row.

    x [..,D] over its root mean square, rounded to x's dtype, then times weight [D].
    """
    cols = tl.arange(0, WIDE)
    index = tl.program_id(0).to(tl.int64) * D + cols
    row = tl.load(x + index, mask=cols < D, other=0.0).to(tl.float32)
    row = row * tl.rsqrt(tl.sum(row * row, 0) / D + eps)
    scaled = row.to(x.dtype.element_ty) * tl.load(weight + cols, mask=cols < D, other=0.0)
    tl.store(out + index, scaled.to(x.dtype.element_ty), mask=cols < D)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(seed, position, out, nodes, vocab, WIDE: tl.constexpr):
    """Gumbel noise; one program per node of all rows and block of tokens.

    See noise.gumbel; the integers before the logarithms are equal bits.
    """
    node = tl.program_id(0)
    token = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    s = tl.load(seed + node // nodes).to(tl.uint64)
    p = tl.load(position + node).to(tl.uint64)
    key = _mix(_mix(s * 0x9E3779B97F4A7C15 + 1) + _mix(p * 0x9E3779B9 + 7))
    x = _mix(key + token.to(tl.uint64) * 0xD1B54A32D192ED03)
    u = ((x >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    tl.store(out + node * vocab + token, (-tl.log(-tl.log(u))).to(tl.float32), mask=token < vocab)
