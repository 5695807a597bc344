"""Triton kernels of attention of a few query rows over a long cache.

The keys are split among programs. `fold` goes over one program's keys. Two kernels around it find
the keys: in tensors (`attend_split`), or in the slots of a cache whose address and lengths are in
device memory (`attend_slots`), so that the launch does not depend on them and can be part of a CUDA
graph. `merge_splits` merges the results of the programs.
"""

# Pyright takes a Triton kernel for a Python function.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_block(
    top, total, mixed, block, x, real, node, k, v, k_slot, v_slot, end, first, visible, far, kept,
    wanted, scale,
    softcap, masked, D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, WIDE_V: tl.constexpr,
    STEP: tl.constexpr,
    PART: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    """One iteration of `fold`. PART: the block may reach beyond `end`."""
    cols = tl.arange(0, WIDE)
    cols_v = tl.arange(0, WIDE_V)
    n = block + tl.arange(0, STEP)
    there = n < end
    if PART or D < WIDE:
        key = tl.load(
            k + n[:, None] * k_slot + cols[None, :], mask=there[:, None] & (cols[None, :] < D),
            other=0.0
        )  # fmt: skip
    else:
        key = tl.load(k + n[:, None] * k_slot + cols[None, :])
    s = tl.dot(x, tl.trans(key), input_precision="tf32x3") * scale
    if CAPPED:
        s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s / softcap)) - 1.0)  # tanh
    seen = there[None, :] & real[:, None]
    if WINDOW:
        seen = seen & ((n[None, :] >= far[:, None]) | (n >= first)[None, :])
    if MASKED:
        tail = n - first
        bits = tl.load(
            visible + node[:, None] * masked + tail[None, :],
            mask=seen & (tail >= 0)[None, :],
            other=1,
        )
        seen = seen & (bits != 0)
    if PART or WINDOW:
        s = tl.where(seen, s, float("-inf"))
    if KEPT:
        tl.store(kept[:, None] + n[None, :], s, mask=wanted[:, None] & there[None, :])
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)  # for a row that has seen no key yet
    p = tl.exp(s - safe[:, None])
    shrink = tl.exp(top - safe)
    if PART or DV < WIDE_V:
        value = tl.load(
            v + n[:, None] * v_slot + cols_v[None, :], mask=there[:, None] & (cols_v[None,
            :] < DV), other=0.0
        )  # fmt: skip
    else:
        value = tl.load(v + n[:, None] * v_slot + cols_v[None, :])
    mixed = mixed * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision="tf32x3")
    return new, total * shrink + tl.sum(p, 1), mixed


@triton.jit
def fold(
    x, real, node, k, v, k_slot, v_slot, begin, end, first, visible, far, kept, wanted, scale,
    softcap,
    masked, ROWS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr,
    WIDE_V: tl.constexpr,
    STEP: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    """Attention of rows x [ROWS,WIDE] over keys [begin, end) of k, v.

    -> their mean value [ROWS,WIDE_V] and log-sum-exp [ROWS].
    visible [nodes,masked] decides who sees the keys from `first` on; all rows see the earlier ones
    (with WINDOW, row r sees those from far[r] on): while whole blocks of these are left no mask is
    read, since reading masks took most of the time of many rows. kept [ROWS]: where scores of
    `wanted` rows go.
    """
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDE_V], tl.float32)
    shared = begin + tl.maximum(tl.minimum(end, first) - begin, 0) // STEP * STEP
    for block in range(begin, shared, STEP):
        top, total, mixed = fold_block(
            top, total, mixed, block, x, real, node, k, v, k_slot, v_slot, end, first, visible,
            far, kept, wanted,
            scale, softcap, masked, D, DV, WIDE, WIDE_V, STEP, False, False, WINDOW, CAPPED, KEPT,
        )  # fmt: skip
    for block in range(shared, end, STEP):
        top, total, mixed = fold_block(
            top, total, mixed, block, x, real, node, k, v, k_slot, v_slot, end, first, visible,
            far, kept, wanted,
            scale, softcap, masked, D, DV, WIDE, WIDE_V, STEP, True, MASKED, WINDOW, CAPPED, KEPT,
        )  # fmt: skip
    share = tl.where(total > 0, total, 1.0)
    return mixed / share[:, None], tl.where(total > 0, top + tl.log(share), float("-inf"))


@triton.jit
def attend_split(
    q, k, v, visible, place, out, lse, logits, q_head, q_node, k_head, k_slot, v_head, v_slot,
    keys, masked, base, splits, span, scale, softcap,
    R: tl.constexpr, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    WIDE_V: tl.constexpr, STEP: tl.constexpr, KEPT: tl.constexpr, MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Attention over tensors; one program per split and tile of rows, and key head.

    q [H,T,D] over keys [split*span, ...) of k [K,S,D], v [K,S,DV] -> row `base`+split of lse
    [K,splits,R], out [K,splits,R,DV]. Row r of a key head is its query head r // T, node r % T.
    visible [T,masked]: of the last keys. place [T]: a node's row of logits [H,KEPT,keys], or -1.
    """
    tiles: tl.constexpr = (R + ROWS - 1) // ROWS
    split = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    head = tl.program_id(1)
    r = tile * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDE)
    cols_v = tl.arange(0, WIDE_V)
    real = r < R
    node = r % T
    query = head * (R // T) + r // T
    pointers = q + query[:, None] * q_head + node[:, None] * q_node + cols[None, :]
    x = tl.load(pointers, mask=real[:, None] & (cols[None, :] < D), other=0.0)
    spot = tl.load(place + node, mask=real, other=-1) if KEPT > 0 else node
    begin = split * span
    mean, log_sum_exp = fold(
        x, real, node, k + head.to(tl.int64) * k_head, v + head.to(tl.int64) * v_head, k_slot,
        v_slot, begin,
        tl.minimum(begin + span, keys), keys - masked, visible, r,
        logits + (query * KEPT + spot).to(tl.int64) * keys if KEPT > 0 else r, spot >= 0, scale,
        softcap, masked,
        ROWS, D, DV, WIDE, WIDE_V, STEP, MASKED, False, CAPPED, KEPT > 0,
    )  # fmt: skip
    part = ((head * splits + base + split) * R + r).to(tl.int64)
    tl.store(
        out + part[:, None] * DV + cols_v[None, :],
        mean,
        mask=real[:, None] & (cols_v[None, :] < DV),
    )
    tl.store(lse + part, log_sum_exp, mask=real)


@triton.jit
def attend_slots(
    q, cache, selected, bounds, visible, depth, place, out, lse, logits, q_row, q_head, q_node,
    picked_splits, splits, span, wide, scale, softcap,
    K: tl.constexpr, R: tl.constexpr, W: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr, STEP: tl.constexpr, KEPT: tl.constexpr, PICKED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Attention over slots; one program per split and tile of rows, key head, and row b.

    q [B,H,W,D] of nodes [start, start+W) over row b's keys.
    bounds [B,4]: committed slots n, start, nodes of the tree, tail_start. cache [4]: addresses of k
    and v [B,K,S,D], S. selected [B,4]: addresses of k and v [K,P,D], P, and the slots between
    heads. The first picked_splits programs share the selected keys (PICKED); the others share the
    slots from tail_start, or from the first slot in the WINDOW, to the end of the tree; any further
    program has no keys. visible [B,W,M]: of the tree's nodes, window included. depth [B,W]. place
    [B,W]: row of logits [B,H,KEPT,wide], or -1. -> lse [B,K,splits,R], out [B,K,splits,R,D].
    """
    tiles: tl.constexpr = (R + ROWS - 1) // ROWS
    split = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    head = tl.program_id(1)
    b = tl.program_id(2)
    r = tile * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDE)
    real = r < R
    node = r % W
    query = head * (R // W) + r // W
    pointers = (
        q
        + b.to(tl.int64) * q_row
        + query[:, None] * q_head
        + node[:, None] * q_node
        + cols[None, :]
    )
    x = tl.load(pointers, mask=real[:, None] & (cols[None, :] < D), other=0.0)
    spot = tl.load(place + b * W + node, mask=real, other=-1) if KEPT > 0 else node
    n = tl.load(bounds + b * 4)
    far = (
        n + tl.load(depth + b * W + node, mask=real, other=0) - WINDOW + 1
        if WINDOW > 0
        else r.to(tl.int64)
    )
    oldest = tl.maximum(n - WINDOW + 1, 0) if WINDOW > 0 else tl.load(bounds + b * 4 + 3)
    begin = oldest + (split - picked_splits) * span
    end = n + tl.load(bounds + b * 4 + 2)
    first = n
    table = cache
    skip = (b * K + head) * tl.load(cache + 2)
    if PICKED and split < picked_splits:
        begin = (split * span).to(tl.int64)
        end = tl.load(selected + b * 4 + 2)
        first = end
        table = selected + b * 4
        skip = head * tl.load(selected + b * 4 + 3)
    kind = tl.pointer_type(q.dtype.element_ty)
    keys = tl.multiple_of(tl.load(table).to(kind), 16) + skip * D  # torch's buffers are aligned
    values = tl.multiple_of(tl.load(table + 1).to(kind), 16) + skip * D
    mean, log_sum_exp = fold(
        x, real, node, keys, values, D, D, begin, tl.minimum(begin + span, end), first,
        visible + b * W * M, far,
        logits + ((b * (R // W) * K + query) * KEPT + spot).to(tl.int64) * wide if KEPT > 0 else r,
        spot >= 0,
        scale, softcap, M, ROWS, D, D, WIDE, WIDE, STEP, True, WINDOW > 0, CAPPED, KEPT > 0,
    )  # fmt: skip
    part = (((b * K + head) * splits + split) * R + r).to(tl.int64)
    tl.store(lse + part, log_sum_exp, mask=real)
    some = real & (log_sum_exp > float("-inf"))  # merge_splits does not read rows that saw no key
    tl.store(
        out + part[:, None] * D + cols[None, :], mean, mask=some[:, None] & (cols[None, :] < D)
    )


@triton.jit
def merge_splits(
    out, lse, sink, mixed, total, splits,
    R: tl.constexpr, W: tl.constexpr, DV: tl.constexpr, WIDE_V: tl.constexpr, SPLITS: tl.constexpr,
    SINK: tl.constexpr,
):  # fmt: skip
    """Merge splits; one program per node, query head and row b.

    out [B,K,splits,R,DV], lse [B,K,splits,R] of disjoint keys -> mixed [B,W,H,DV] and the total
    log-sum-exp, total [B,H,W]. sink [H]: a logit that takes weight but has no value.
    """
    w = tl.program_id(0)
    head = tl.program_id(1)
    b = tl.program_id(2)
    heads = tl.num_programs(1)
    group: tl.constexpr = R // W
    first = (
        ((b * (heads // group) + head // group) * splits).to(tl.int64) * R + (head % group) * W + w
    )
    s = tl.arange(0, SPLITS)
    cols = tl.arange(0, WIDE_V)
    parts = tl.load(lse + first + s * R, mask=s < splits, other=float("-inf"))
    extra = tl.load(sink + head).to(tl.float32) if SINK else float("-inf")
    top = tl.maximum(tl.max(parts, 0), extra)
    top = tl.where(top == float("-inf"), 0.0, top)  # a padding node may have seen no key
    weight = tl.sum(tl.exp(parts - top), 0) + tl.exp(extra - top)
    whole = top + tl.log(tl.where(weight > 0, weight, 1.0))
    mean = tl.zeros([WIDE_V], tl.float32)
    for block in range(0, splits, 16):
        few = block + tl.arange(0, 16)
        shares = tl.exp(
            tl.load(lse + first + few * R, mask=few < splits, other=float("-inf")) - whole
        )
        # a split that saw no key was not written
        some = (shares > 0)[:, None] & (cols[None, :] < DV)
        value = tl.load(out + (first + few * R)[:, None] * DV + cols[None, :], mask=some, other=0.0)
        mean += tl.sum(shares[:, None] * value, 0)
    row = (b * tl.num_programs(0) + w) * heads + head
    tl.store(mixed + row * DV + cols, mean.to(mixed.dtype.element_ty), mask=cols < DV)
    tl.store(total + (b * heads + head) * tl.num_programs(0) + w, whole)


@triton.jit
def write_slots(
    k, v, cache, bounds, k_row, k_head, k_node, v_row, v_head, v_node, D: tl.constexpr,
    WIDE: tl.constexpr
):  # fmt: skip
    """Write k, v [B,K,W,D] to slots; one program per node, key head and row b.

    Nodes [start, size) go to the slots from n+start.
    """
    w = tl.program_id(0)
    head = tl.program_id(1)
    b = tl.program_id(2)
    n = tl.load(bounds + b * 4)
    start = tl.load(bounds + b * 4 + 1)
    size = tl.load(bounds + b * 4 + 2)
    cols = tl.arange(0, WIDE)
    mine = cols < tl.where(w < size - start, D, 0)  # padding beyond the tree is not written
    skip = ((b * tl.num_programs(1) + head) * tl.load(cache + 2) + n + start + w) * D
    kind = tl.pointer_type(k.dtype.element_ty)
    key = tl.load(k + b * k_row + head * k_head + w * k_node + cols, mask=mine)
    tl.store(tl.load(cache).to(kind) + skip + cols, key, mask=mine)
    value = tl.load(v + b * v_row + head * v_head + w * v_node + cols, mask=mine)
    tl.store(tl.load(cache + 1).to(kind) + skip + cols, value, mask=mine)


@triton.jit
def mean_scores(
    logits, total, keep, place, bounds, scores, wide, heads,
    W: tl.constexpr, KEPT: tl.constexpr, PER: tl.constexpr, WEIGHTS: tl.constexpr,
    POOLED: tl.constexpr,
    BLOCK: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Average scores; one program per block of slots, kept row, and row b with column.

    logits [B,H,KEPT,wide] -> scores [B,rows,columns,wide], means over the PER query heads of a
    column and, if POOLED, the tree's rows; -inf beyond the root. keep [B,KEPT]. SIDE heads are read
    at a time: one after another they wait for memory most of the time.
    """
    columns = heads // PER
    b = tl.program_id(2) // columns
    column = tl.program_id(2) % columns
    row = tl.program_id(1)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = slot <= tl.load(bounds + b * 4)
    low = 0 if POOLED else row
    high = tl.load(bounds + b * 4 + 2).to(tl.int32) if POOLED else row + 1
    side = tl.arange(0, SIDE)
    mean = tl.zeros([BLOCK], tl.float32)
    for i in range(low, high):
        node = tl.load(keep + b * KEPT + i)
        spot = tl.load(place + b * W + node)
        for g in range(0, PER, SIDE):
            query = b * heads + column * PER + g + side
            some = g + side < PER
            own = (query * KEPT + spot).to(tl.int64)[:, None] * wide + slot[None, :]
            s = tl.load(logits + own, mask=some[:, None] & there[None, :], other=0.0)
            if WEIGHTS:
                s = tl.exp(
                    s - tl.load(total + query * W + node, mask=some, other=float("inf"))[:, None]
                )
            mean += tl.sum(s, 0)
    mean = tl.where(there, mean / ((high - low) * PER), float("-inf"))
    row_start = ((b * tl.num_programs(1) + row) * columns + column).to(tl.int64) * wide
    tl.store(scores + row_start + slot, mean, mask=slot < wide)
