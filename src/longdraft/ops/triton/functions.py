"""Functions that launch the Triton kernels (kernels.py).

Attention of one row over segments, a norm, keyed noise.
"""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from itertools import accumulate

import torch
import triton
from torch import Tensor

from longdraft.ops.reference import Attended, Segment
from longdraft.ops.triton.kernels import attend_split, merge_splits
from longdraft.ops.triton.row_kernels import gate_values, gumbel_noise, rms_rows, rotate_heads

STEP = 64  # the maximum number of keys in one iteration of a program's loop
PROGRAMS = 512  # the programs of a launch: a few for each of a GPU's 100 to 150 multiprocessors


def wide(n: int) -> int:
    """The side of a tile that holds n: a power of two from 16 on, as matrix units need."""
    return max(16, triton.next_power_of_2(n))


def tile_of(rows: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """The query rows [rows,dim] of one program, and the keys that it takes per iteration.

    A program's registers and shared memory fit 128 rows and 64 keys of 128 16-bit numbers.
    """
    large = dtype.itemsize > 2
    most = max(16, min(128, 16384 // wide(dim) // (4 if large else 1)))
    return min(most, wide(rows)), max(16, min(STEP, 8192 // wide(dim)) // (2 if large else 1))


def tiling(rows: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """The number of tiles for these query rows, and the warps of each."""
    tile, _ = tile_of(rows, dim, dtype)
    return triton.cdiv(rows, tile), 8 if tile > 64 else 4


def span_of(keys: int, programs: int) -> int:
    """The number of keys that one program takes.

    programs: how many heads, rows and tiles alone already give.
    """
    return STEP * max(1, triton.cdiv(keys, STEP * max(1, PROGRAMS // programs)))


def merge(
    out: Tensor, lse: Tensor, nodes: int, dtype: torch.dtype, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Merge out [B,K,splits,R,Dv] by lse [B,K,splits,R].

    -> mixed [B,W,H,Dv], total log-sum-exp [B,H,W] in float32.
    """
    B, K, splits, R, DV = out.shape
    H = K * R // nodes
    mixed = torch.empty(B, nodes, H, DV, dtype=dtype, device=out.device)
    total = torch.empty(B, H, nodes, dtype=torch.float32, device=out.device)
    merge_splits[(nodes, H, B)](
        out, lse, sink, mixed, total, splits,
        R, nodes, DV, wide(DV), wide(splits), sink is not None,
    )  # fmt: skip
    return mixed, total


def sizes(
    dtype: torch.dtype, R: int, T: int, D: int, DV: int, kept: int, masked: bool, capped: bool
) -> dict:
    """The compile-time constants of attend_split."""
    tile, step = tile_of(R, max(D, DV), dtype)
    return {
        "R": R, "T": T, "D": D, "DV": DV, "ROWS": tile, "WIDE": wide(D), "WIDE_V": wide(DV),
        "STEP": step,
        "KEPT": kept, "MASKED": masked, "CAPPED": capped,
    }  # fmt: skip


def attend(
    q: Tensor,
    segments: list[Segment],
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    keep: list[int] | None = None,
) -> Attended:
    """See reference.attend."""
    H, T, D = q.shape
    segments = [s for s in segments if s.k.shape[1]]
    K, _, DV = segments[0].v.shape
    R = H // K * T
    tiles, warps = tiling(R, max(D, DV), q.dtype)
    counts = [s.k.shape[1] for s in segments]
    spans = [span_of(n, K * tiles) for n in counts]
    splits = [triton.cdiv(n, s) for n, s in zip(counts, spans, strict=True)]
    out = torch.empty(1, K, sum(splits), R, DV, dtype=torch.float32, device=q.device)
    lse = torch.empty(1, K, sum(splits), R, dtype=torch.float32, device=q.device)
    rows = sorted(set(keep or ()))
    place = torch.full((T,), -1, dtype=torch.int32)
    # the row of the kept scores that belongs to each node
    place[rows] = torch.arange(len(rows), dtype=torch.int32)
    place = place.to(q.device) if rows else None
    q = q if q.stride(2) == 1 else q.contiguous()
    logits = []
    bases = accumulate(splits, initial=0)
    for s, n, span, own, base in zip(segments, counts, spans, splits, bases, strict=False):
        k = s.k if s.k.stride(2) == 1 else s.k.contiguous()
        v = s.v if s.v.stride(2) == 1 else s.v.contiguous()
        visible = None if s.visible is None else s.visible.to(torch.uint8).contiguous()
        logits.append(
            torch.empty(H, len(rows), n, dtype=torch.float32, device=q.device) if rows else None
        )
        attend_split[(own * tiles, K)](
            q, k, v, visible, place, out, lse, logits[-1], q.stride(0), q.stride(1), k.stride(0),
            k.stride(1),
            v.stride(0), v.stride(1), n, 0 if visible is None else visible.shape[1], base,
            sum(splits), span, scale,
            softcap or 0.0, num_warps=warps,
            **sizes(q.dtype, R, T, D, DV, len(rows), visible is not None, bool(softcap)),
        )  # fmt: skip
    mixed, total = merge(out, lse, T, q.dtype, sink)
    if keep is None:
        return Attended(mixed[0])
    kept = torch.cat(logits, -1)[:, [rows.index(r) for r in keep]]
    return Attended(mixed[0], kept, (kept - total[0][:, keep, None]).exp())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Llama's norm in one launch instead of eight.

    x [..,D] over its root mean square, times weight [D].
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    D = x.shape[-1]
    rms_rows[(x.numel() // D,)](x, weight, out, eps, D, wide(D))
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotation in one launch instead of five.

    x [B,H,W,D], cos and sin [B or 1,W,D] -> [B,H,W,D].
    """
    B, H, W, D = x.shape
    x = x if x.stride(3) == 1 else x.contiguous()
    cos = cos.contiguous()
    sin = sin.contiguous()
    out = torch.empty(B, H, W, D, dtype=x.dtype, device=x.device)
    row = cos.stride(0) if len(cos) == B else 0
    rotate_heads[(W, H, B)](x, cos, sin, out, *x.stride()[:3], row, D, W, D // 2, wide(D // 2))
    return out


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in one launch instead of two."""
    gate = gate.contiguous()
    up = up.contiguous()
    out = torch.empty_like(gate)
    gate_values[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), 1024)
    return out


def gumbel(seed: Tensor, position: Tensor, vocab: int, wide: int = 1024) -> Tensor:
    """noise.gumbel in one launch: seed [B], position [B,T] -> [B,T,vocab] float32."""
    out = torch.empty(*position.shape, vocab, dtype=torch.float32, device=position.device)
    grid = (position.numel(), triton.cdiv(vocab, wide))
    gumbel_noise[grid](
        seed.contiguous(), position.contiguous(), out, position.shape[1], vocab, WIDE=wide
    )
    return out
