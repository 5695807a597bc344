"""The operations of `ops` on a GPU, by Triton's kernels (kernels.py): attention of one row over segments, keyed noise.

Checked by the interpreter and compiled for sm_80, sm_90 and sm_100 in the tests; `trial.py` checks them once more on
the device itself before they are used.
"""

# A Triton kernel is not the Python function that it reads like.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from itertools import accumulate

import torch
import triton
from torch import Tensor

from longdraft.ops.reference import Attended, Segment
from longdraft.ops.triton.kernels import attend_split, gumbel_noise, merge_splits, rms_rows

STEP = 64  # keys of one turn of a program's loop, at most
PROGRAMS = 512  # that a launch should have: a few for each of a GPU's 100 to 150 processors


def wide(n: int) -> int:
    """A tile's side: matrix units take powers of two from 16 on."""
    return max(16, triton.next_power_of_2(n))


def tile_of(rows: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Of so many query rows of so many numbers, how many one program takes, and how many keys a turn.

    What fits a program's registers and shared memory: 128 rows and 64 keys of 128 numbers of 16 bits.
    """
    large = dtype.itemsize > 2
    most = max(16, min(128, 16384 // wide(dim) // (4 if large else 1)))
    return min(most, wide(rows)), max(16, min(STEP, 8192 // wide(dim)) // (2 if large else 1))


def tiling(rows: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """How many tiles so many rows make, and the warps that one fits in."""
    tile, _ = tile_of(rows, dim, dtype)
    return triton.cdiv(rows, tile), 8 if tile > 64 else 4


def span_of(keys: int, programs: int) -> int:
    """How many keys a program folds where there are already so many programs for other reasons."""
    return STEP * max(1, triton.cdiv(keys, STEP * max(1, PROGRAMS // programs)))


def merge(out: Tensor, lse: Tensor, nodes: int, dtype: torch.dtype, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """out [B,K,splits,R,Dv], lse [B,K,splits,R] -> mixed [B,W,H,Dv], total log-sum-exp [B,H,W] in float32."""
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
    dtype: torch.dtype, R: int, T: int, D: int, DV: int, kept: int, selected: bool, masked: bool, capped: bool
) -> dict:
    """What a build of attend_split is made for."""
    tile, step = tile_of(R, max(D, DV), dtype)
    return {
        "R": R, "T": T, "D": D, "DV": DV, "ROWS": tile, "WIDE": wide(D), "WIDE_V": wide(DV), "STEP": step,
        "KEPT": kept, "PICKED": selected, "MASKED": masked, "CAPPED": capped,
    }  # fmt: skip


def _place(nodes: int, rows: list[int], device: torch.device) -> Tensor | None:
    """[nodes] where a node's scores are kept, -1 for those that are not."""
    if not rows:
        return None
    place = torch.full((nodes,), -1, dtype=torch.int32)
    place[rows] = torch.arange(len(rows), dtype=torch.int32)
    return place.to(device)


def attend(
    q: Tensor,
    segments: list[Segment],
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    keep: list[int] | None = None,
    slots: Tensor | None = None,
) -> Attended:
    """See reference.attend: the same contract. slots [P]: only these keys of every segment, in this order."""
    H, T, D = q.shape
    segments = [s for s in segments if s.k.shape[1]]
    K, _, DV = segments[0].v.shape
    R = H // K * T
    tiles, warps = tiling(R, max(D, DV), q.dtype)
    counts = [s.k.shape[1] if slots is None else len(slots) for s in segments]
    spans = [span_of(n, K * tiles) for n in counts]
    splits = [triton.cdiv(n, s) for n, s in zip(counts, spans, strict=True)]
    out = torch.empty(1, K, sum(splits), R, DV, dtype=torch.float32, device=q.device)
    lse = torch.empty(1, K, sum(splits), R, dtype=torch.float32, device=q.device)
    rows = sorted(set(keep or ()))
    place, q, logits = _place(T, rows, q.device), q if q.stride(2) == 1 else q.contiguous(), []
    bases = accumulate(splits, initial=0)
    for s, n, span, own, base in zip(segments, counts, spans, splits, bases, strict=False):
        k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (s.k, s.v))
        visible = None if s.visible is None else s.visible.to(torch.uint8).contiguous()
        logits.append(torch.empty(H, len(rows), n, dtype=torch.float32, device=q.device) if rows else None)
        attend_split[(own * tiles, K)](
            q, k, v, slots, visible, place, out, lse, logits[-1], q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            v.stride(0), v.stride(1), n, 0 if visible is None else visible.shape[1], base, sum(splits), span, scale,
            softcap or 0.0, num_warps=warps,
            **sizes(q.dtype, R, T, D, DV, len(rows), slots is not None, visible is not None, bool(softcap)),
        )  # fmt: skip
    mixed, total = merge(out, lse, T, q.dtype, sink)
    if keep is None:
        return Attended(mixed[0])
    found = torch.cat(logits, -1)[:, [rows.index(r) for r in keep]]
    return Attended(mixed[0], found, (found - total[0][:, keep, None]).exp())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..,D] over its root mean square, times weight [D]: Llama's norm in one launch instead of eight."""
    x = x.contiguous()
    out, D = torch.empty_like(x), x.shape[-1]
    rms_rows[(x.numel() // D,)](x, weight, out, eps, D, wide(D))
    return out


def gumbel(seed: Tensor, position: Tensor, vocab: int, wide: int = 1024) -> Tensor:
    """noise.gumbel in one launch: seed [B], position [B,T] -> [B,T,vocab] float32."""
    out = torch.empty(*position.shape, vocab, dtype=torch.float32, device=position.device)
    grid = (position.numel(), triton.cdiv(vocab, wide))
    gumbel_noise[grid](seed.contiguous(), position.contiguous(), out, position.shape[1], vocab, WIDE=wide)
    return out
