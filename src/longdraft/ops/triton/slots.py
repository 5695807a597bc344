"""Attention over cache slots.

Addresses, lengths and selections are in device memory, so no launch depends on them.
"""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from longdraft.ops.triton.functions import merge, span_of, tile_of, tiling, wide
from longdraft.ops.triton.kernels import attend_slots, mean_scores, write_slots

BLOCK = 128  # slots per program when scores are averaged
SIDE = 16  # heads that it reads at a time


@dataclass
class SlotKeys:
    """The keys that a pass of W nodes reads in one layer.

    At most `selected` copied keys and `slots` cache slots.
    cache [4]: the addresses of k and v [B,K,S,D], and S. indices [B,4]: the addresses of the copied
    k and v [K,P,D], P, and the slots between heads. bounds [B,4]: committed slots, first node of
    the pass, nodes of the tree, first slot seen. All are int64. visible [B,W,M] uint8: which of the
    tree's M nodes a node sees. window: a node sees no slot that is so far before it or further;
    depth [B,W] int64.
    """

    cache: Tensor
    indices: Tensor
    bounds: Tensor
    visible: Tensor
    depth: Tensor
    slots: int
    selected: int = 0
    window: int = 0


def write(k: Tensor, v: Tensor, cache: Tensor, bounds: Tensor) -> None:
    """Write k, v [B,K,W,D] of nodes [start, size) to their slots.

    Padding beyond the tree is not written.
    """
    B, K, W, D = k.shape
    k = k if k.stride(3) == 1 else k.contiguous()
    v = v if v.stride(3) == 1 else v.contiguous()
    write_slots[(W, K, B)](k, v, cache, bounds, *k.stride()[:3], *v.stride()[:3], D, wide(D))


def sizes(
    dtype: torch.dtype,
    K: int,
    R: int,
    W: int,
    M: int,
    D: int,
    kept: int,
    selected: bool,
    window: int,
    capped: bool,
) -> dict:
    """The compile-time constants of attend_slots."""
    tile, step = tile_of(R, D, dtype)
    return {
        "K": K, "R": R, "W": W, "M": M, "D": D, "ROWS": tile, "WIDE": wide(D), "STEP": step,
        "KEPT": kept,
        "PICKED": selected, "WINDOW": window, "CAPPED": capped,
    }  # fmt: skip


def attend(
    q: Tensor,
    heads: int,
    keys: SlotKeys,
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    place: Tensor | None = None,
    kept: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention of q [B,H,W,D] over `heads` key heads.

    -> out [B,W,H,D], log-sum-exp [B,H,W], logits [B,H,kept,slots] or None.
    place [B,W] int32: a node's row in logits, or -1; slots up to the root are written, unless keys
    are selected.
    """
    B, H, W, D = q.shape
    q = q if q.stride(3) == 1 else q.contiguous()
    R = H // heads * W
    M = keys.visible.shape[2]
    tiles, warps = tiling(R, D, q.dtype)
    span = span_of(keys.slots + keys.selected, B * heads * tiles)
    first = triton.cdiv(keys.selected, span)
    splits = first + triton.cdiv(keys.slots, span)
    out = torch.empty(B, heads, splits, R, D, dtype=torch.float32, device=q.device)
    lse = torch.empty(B, heads, splits, R, dtype=torch.float32, device=q.device)
    logits = (
        torch.empty(B, H, kept, keys.slots, dtype=torch.float32, device=q.device) if kept else None
    )
    attend_slots[(splits * tiles, heads, B)](
        q, keys.cache, keys.indices, keys.bounds, keys.visible, keys.depth, place, out, lse, logits,
        *q.stride()[:3], first, splits, span, keys.slots, scale, softcap or 0.0, num_warps=warps,
        **sizes(q.dtype, heads, R, W, M, D, kept, first > 0, keys.window, bool(softcap)),
    )  # fmt: skip
    return *merge(out, lse, W, q.dtype, sink), logits


def average(
    logits: Tensor,
    total: Tensor,
    keep: Tensor,
    place: Tensor,
    bounds: Tensor,
    weights: bool,
    pooled: bool,
    into: Tensor,
) -> None:
    """Write means over heads of rows keep [B,R] into [B,R,columns,slots].

    pooled: over the tree's rows too, R is 1.
    """
    B, H, kept, count = logits.shape
    columns = into.shape[2]
    grid = (triton.cdiv(count, BLOCK), into.shape[1], B * columns)
    mean_scores[grid](
        logits, total, keep, place, bounds, into, count, H,
        place.shape[1], kept, H // columns, weights, pooled, BLOCK, min(SIDE,
        triton.next_power_of_2(H // columns)),
    )  # fmt: skip
