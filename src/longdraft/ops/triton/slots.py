"""Attention over cache slots whose place, lengths and picks lie in device memory: no launch depends on them."""

# A Triton kernel is not the Python function that it reads like.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from longdraft.ops.triton.functions import merge, span_of, tile_of, tiling, wide
from longdraft.ops.triton.kernels import attend_slots, mean_scores, write_slots

BLOCK = 256  # slots of a program that averages scores


@dataclass
class Reach:
    """What a pass of W nodes reads in one layer: at most `picked` keys beside the cache and `keys` slots of it.

    cache [4]: addresses of k and v [B,K,S,D], and S. picks [B,4]: addresses of k and v [K,P,D], P, and slots from head
    to head. bounds [B,4]: committed slots, first node of the pass, nodes of the tree, first slot seen. All int64.
    visible [B,W,M] uint8: which of the tree's M nodes a node sees. window: a node also sees no slot that lies so far
    before it; depth [B,W] int64.
    """

    cache: Tensor
    indices: Tensor
    bounds: Tensor
    visible: Tensor
    depth: Tensor
    keys: int
    selected: int = 0
    window: int = 0


def write(k: Tensor, v: Tensor, cache: Tensor, bounds: Tensor) -> None:
    """k, v [B,K,W,D] of nodes [start, size) go to their slots; nodes beyond the tree go nowhere."""
    B, K, W, D = k.shape
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    write_slots[(W, K, B)](k, v, cache, bounds, *k.stride()[:3], *v.stride()[:3], D, wide(D))


def sizes(
    dtype: torch.dtype, K: int, R: int, W: int, M: int, D: int, kept: int, selected: bool, window: int, capped: bool
) -> dict:
    """What a build of attend_slots is made for."""
    tile, step = tile_of(R, D, dtype)
    return {
        "K": K, "R": R, "W": W, "M": M, "D": D, "ROWS": tile, "WIDE": wide(D), "STEP": step, "KEPT": kept,
        "PICKED": selected, "WINDOW": window, "CAPPED": capped,
    }  # fmt: skip


def attend(
    q: Tensor,
    heads: int,
    reach: Reach,
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    place: Tensor | None = None,
    kept: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """q [B,H,W,D] over `heads` key heads -> out [B,W,H,D], log-sum-exp [B,H,W], logits [B,H,kept,keys] or None.

    place [B,W] int32: a node's place in logits, or -1; slots up to the root are written where nothing is picked.
    """
    B, H, W, D = q.shape
    q = q if q.stride(3) == 1 else q.contiguous()
    R, M = H // heads * W, reach.visible.shape[2]
    tiles, warps = tiling(R, D, q.dtype)
    span = span_of(reach.keys + reach.selected, B * heads * tiles)
    first = triton.cdiv(reach.selected, span)
    splits = first + triton.cdiv(reach.keys, span)
    out = torch.empty(B, heads, splits, R, D, dtype=torch.float32, device=q.device)
    lse = torch.empty(B, heads, splits, R, dtype=torch.float32, device=q.device)
    logits = torch.empty(B, H, kept, reach.keys, dtype=torch.float32, device=q.device) if kept else None
    attend_slots[(splits * tiles, heads, B)](
        q, reach.cache, reach.indices, reach.bounds, reach.visible, reach.depth, place, out, lse, logits,
        *q.stride()[:3], first, splits, span, reach.keys, scale, softcap or 0.0, num_warps=warps,
        **sizes(q.dtype, heads, R, W, M, D, kept, first > 0, reach.window, bool(softcap)),
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
    """Means over heads of rows keep [B,R] go to `into` [B,R,columns,keys]; pooled: over the tree's rows too, R 1."""
    (B, H, kept, keys), columns = logits.shape, into.shape[2]
    grid = (triton.cdiv(keys, BLOCK), into.shape[1], B * columns)
    mean_scores[grid](
        logits, total, keep, place, bounds, into, keys, H,
        place.shape[1], kept, H // columns, weights, pooled, BLOCK,
    )  # fmt: skip
