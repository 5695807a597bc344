"""Attention of a few query rows over a long cache in Triton: keys split among programs, parts merged by log-sum-exp.

One kernel serves every segment: a prefix that all rows see, a tail under a tree's mask, picked slots. Checked by the
interpreter and compiled for sm_80, sm_90 and sm_100 in the tests; `LONGDRAFT_TRITON=1` uses it on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdraft.ops.reference import Attended, Segment

SPLIT, STEP = 512, 64  # keys of a program, and of one turn of its loop


@triton.jit
def attend_split(
    q, k, v, slots, visible, kept, out, lse, logits,
    k_head, k_slot, v_head, v_slot, keys, masked, scale, softcap,
    R: tl.constexpr, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    WIDE_V: tl.constexpr, SPLIT: tl.constexpr, STEP: tl.constexpr, KEPT: tl.constexpr, PICKED: tl.constexpr,
    MASKED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Program (split, key head): q [K,R,D] over keys [split*SPLIT, ...) of k [K,S,D], v [K,S,DV] -> lse [K,splits,R],
    out [K,splits,R,DV]. Row r is node r % T. slots [keys]: which slots (PICKED). visible [T,masked]: of the last keys.
    kept [R]: a row's place in logits [K,KEPT,keys], or -1."""
    split, head, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    rows, cols, cols_v = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, WIDE_V)
    real = rows < R
    at = q + (head * R + rows[:, None]) * D + cols[None, :]
    x = tl.load(at, mask=real[:, None] & (cols[None, :] < D), other=0.0)
    place = tl.load(kept + rows, mask=real, other=-1) if KEPT > 0 else rows
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDE_V], tl.float32)
    for begin in range(0, SPLIT, STEP):
        n = split * SPLIT + begin + tl.arange(0, STEP)
        there = n < keys
        slot = tl.load(slots + n, mask=there, other=0) if PICKED else n
        key = tl.load(
            k + head * k_head + slot[:, None] * k_slot + cols[None, :],
            mask=there[:, None] & (cols[None, :] < D), other=0.0,
        )  # fmt: skip
        s = tl.dot(x, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s / softcap)) - 1.0)  # tanh
        seen = there[None, :] & real[:, None]
        if MASKED:
            tail = n - (keys - masked)
            bits = tl.load(
                visible + (rows % T)[:, None] * masked + tail[None, :],
                mask=seen & (tail >= 0)[None, :], other=1,
            )  # fmt: skip
            seen = seen & (bits != 0)
        s = tl.where(seen, s, float("-inf"))
        if KEPT > 0:
            wanted = (place >= 0)[:, None] & there[None, :]
            tl.store(logits + (head * KEPT + place[:, None]) * keys + n[None, :], s, mask=wanted)
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
        p = tl.exp(s - safe[:, None])
        shrink = tl.exp(top - safe)
        value = tl.load(
            v + head * v_head + slot[:, None] * v_slot + cols_v[None, :],
            mask=there[:, None] & (cols_v[None, :] < DV), other=0.0,
        )  # fmt: skip
        mixed = mixed * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
        total, top = total * shrink + tl.sum(p, 1), new
    share = tl.where(total > 0, total, 1.0)
    part = (head * splits + split) * R + rows
    tl.store(
        out + part[:, None] * DV + cols_v[None, :], mixed / share[:, None], mask=real[:, None] & (cols_v[None, :] < DV)
    )
    tl.store(lse + part, tl.where(total > 0, top + tl.log(share), float("-inf")), mask=real)


def attend_segment(
    q: Tensor, segment: Segment, scale: float, softcap: float | None, keep: Tensor | None, slots: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """q [K,R,D] (query heads folded into rows) -> out [K,splits,R,Dv] and lse [K,splits,R] in float32, logits
    [K,kept,S]. slots [P]: only these of the segment's keys, in this order. keep [R]: as in the kernel."""
    k, v, visible = segment.k, segment.v, segment.visible
    K, R, D = q.shape
    keys = k.shape[1] if slots is None else len(slots)
    T = R if visible is None else visible.shape[0]
    kept = 0 if keep is None else int(keep.max()) + 1
    splits = triton.cdiv(keys, SPLIT)
    out = torch.empty(K, splits, R, v.shape[2], dtype=torch.float32, device=q.device)
    lse = torch.empty(K, splits, R, dtype=torch.float32, device=q.device)
    logits = torch.empty(K, kept, keys, dtype=torch.float32, device=q.device) if kept else None
    k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (k, v))
    attend_split[(splits, K)](
        q.contiguous(), k, v, slots, None if visible is None else visible.to(torch.uint8).contiguous(), keep, out, lse,
        logits, k.stride(0), k.stride(1), v.stride(0), v.stride(1), keys, 0 if visible is None else visible.shape[1],
        scale, softcap or 0.0,
        **sizes(R, T, D, v.shape[2], kept, slots is not None, visible is not None, bool(softcap)),
    )  # fmt: skip
    return out, lse, logits


def sizes(R: int, T: int, D: int, DV: int, kept: int, picked: bool, masked: bool, capped: bool) -> dict:
    """What a build of the kernel is made for."""
    wide = {n: max(16, triton.next_power_of_2(x)) for n, x in (("ROWS", R), ("WIDE", D), ("WIDE_V", DV))}
    return {
        "R": R, "T": T, "D": D, "DV": DV, **wide, "SPLIT": SPLIT, "STEP": STEP, "KEPT": kept, "PICKED": picked,
        "MASKED": masked, "CAPPED": capped,
    }  # fmt: skip


def attend(
    q: Tensor,
    segments: list[Segment],
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    keep: list[int] | None = None,
) -> Attended:
    """See reference.attend: the same contract."""
    H, T, D = q.shape
    K = segments[0].k.shape[0]
    groups, rows = H // K, q.reshape(K, H // K * T, D)
    place = None
    if keep is not None:
        place = torch.full((groups, T), -1, dtype=torch.int32, device=q.device)
        place[:, keep] = torch.arange(groups * len(keep), dtype=torch.int32, device=q.device).view(groups, -1)
        place = place.flatten()
    found = [attend_segment(rows, s, scale, softcap, place) for s in segments if s.k.shape[1]]
    out, lse = torch.cat([f[0] for f in found], 1), torch.cat([f[1] for f in found], 1)
    extra = [] if sink is None else [sink.float().view(K, 1, groups, 1).expand(-1, -1, -1, T).reshape(K, 1, -1)]
    whole = torch.cat([lse, *extra], 1).logsumexp(1, keepdim=True)
    mixed = ((lse - whole).exp()[..., None] * out).sum(1).to(q.dtype)
    mixed = mixed.view(H, T, -1).transpose(0, 1)
    if keep is None:
        return Attended(mixed)
    logits = torch.cat([f[2] for f in found if f[2] is not None], -1).view(H, len(keep), -1)
    share = whole.view(K, groups, T)[:, :, keep].reshape(H, len(keep), 1)
    return Attended(mixed, logits, (logits - share).exp())


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(seed, position, out, nodes, vocab, WIDE: tl.constexpr):
    """Program (node of all rows, part of the vocabulary): noise.gumbel's numbers, the integers bit for bit."""
    node = tl.program_id(0)
    token = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    s = tl.load(seed + node // nodes).to(tl.uint64)
    p = tl.load(position + node).to(tl.uint64)
    key = _mix(_mix(s * 0x9E3779B97F4A7C15 + 1) + _mix(p * 0x9E3779B9 + 7))
    x = _mix(key + token.to(tl.uint64) * 0xD1B54A32D192ED03)
    u = ((x >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    tl.store(out + node * vocab + token, (-tl.log(-tl.log(u))).to(tl.float32), mask=token < vocab)


def gumbel(seed: Tensor, position: Tensor, vocab: int, wide: int = 1024) -> Tensor:
    """noise.gumbel in one launch: seed [B], position [B,T] -> [B,T,vocab] float32."""
    out = torch.empty(*position.shape, vocab, dtype=torch.float32, device=position.device)
    grid = (position.numel(), triton.cdiv(vocab, wide))
    gumbel_noise[grid](seed.contiguous(), position.contiguous(), out, position.shape[1], vocab, WIDE=wide)  # pyright: ignore[reportArgumentType]
    return out
