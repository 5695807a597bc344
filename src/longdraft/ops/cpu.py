"""Attention on a CPU.

Query heads that share a key head are folded into rows, so keys are never repeated.
The shape decides how: one unmasked segment goes to torch's flash kernel; few queries take one
softmax over the joined logits of all segments, which needs fewer passes than merging; many queries
(prefill) go to the flash kernel one part at a time.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from longdraft.ops.reference import Attended, Segment, merge

MAX_JOINED = 128  # with more query rows the joined logits no longer fit into the processor's cache


def _flash(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q [K,R,D], k, v [K,S,D], bias [R,S] -> out [K,R,D], lse [K,R].

    Uses a private torch operator.
    """
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = op(q[None], k[None], v[None], 0.0, False, attn_mask=bias, scale=scale)
    return out[0], lse[0]


def _bias(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[T,S] bool -> [groups*T,S] additive."""
    zero = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zero.masked_fill_(~visible, float("-inf")).repeat(groups, 1)


def _split(segment: Segment) -> list[Segment]:
    """The part that all queries see, and the masked tail."""
    if segment.visible is None:
        return [segment]
    head = segment.k.shape[1] - segment.visible.shape[1]
    tail = Segment(segment.k[:, head:], segment.v[:, head:], segment.visible)
    return [Segment(segment.k[:, :head], segment.v[:, :head]), tail] if head else [tail]


def _many(q: Tensor, segments: list[Segment], scale: float, groups: int) -> tuple[Tensor, Tensor]:
    """The flash kernel over each part, merged by log-sum-exp.

    q [K,R,D] -> out [K,R,Dv], lse [K,R].
    """
    state: tuple[Tensor, Tensor] | None = None
    for part in chain.from_iterable(map(_split, segments)):
        bias = None if part.visible is None else _bias(part.visible, groups, q.dtype)
        out, lse = _flash(q, part.k, part.v, scale, bias)
        if part.visible is not None and not bool((seen := part.visible.any(1)).all()):
            # the kernel returns NaN for a query that sees nothing of this part
            blind = ~seen.repeat(groups)
            out = out.masked_fill(blind[:, None], 0.0)
            lse = lse.masked_fill(blind, float("-inf"))
        state = (out.float(), lse) if state is None else merge(state, (out.float(), lse))
    assert state is not None
    return state[0].to(q.dtype), state[1]


def _few(
    q: Tensor, segments: list[Segment], scale: float, softcap: float | None, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One softmax over all segments.

    q [K,G,T,D] -> out [K,G*T,Dv], logits and weights [K,G,T,S(+1 with a sink)].
    """
    K, G, T, D = q.shape
    rows = (q * scale).reshape(K, G * T, D)
    logits = []
    for s in segments:
        part = rows @ s.k.mT
        if softcap is not None:
            part = torch.tanh(part / softcap) * softcap
        if s.visible is not None:
            tail = part.view(K, G, T, -1)[..., part.shape[-1] - s.visible.shape[1] :]
            tail.masked_fill_(~s.visible, float("-inf"))
        logits.append(part)
    if sink is not None:
        logits.append(sink.to(q.dtype).view(K, G, 1, 1).expand(K, G, T, 1).reshape(K, G * T, 1))
    joined = logits[0] if len(logits) == 1 else torch.cat(logits, -1)
    weights = joined.softmax(-1)
    out = None
    offset = 0
    for s in segments:
        part = weights[..., offset : offset + s.k.shape[1]] @ s.v
        out = part if out is None else out + part
        offset = offset + s.k.shape[1]
    assert out is not None
    return out, joined.view(K, G, T, -1)[..., :offset], weights.view(K, G, T, -1)[..., :offset]


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
    K = segments[0].k.shape[0]
    G = H // K
    square = segments[0].v.shape[-1] == D and softcap is None and keep is None
    unmasked = len(segments) == 1 and segments[0].visible is None and sink is None
    if square and q.is_cpu and (unmasked or T > MAX_JOINED):  # the kernel exists on CPUs only
        out, lse = _many(q.reshape(K, G * T, D), segments, scale, G)
        if sink is not None:
            seen = torch.sigmoid(lse.reshape(H, T) - sink[:, None])
            out = out * seen.view(K, G * T, 1).to(out.dtype)
        return Attended(out.view(H, T, -1).transpose(0, 1))
    out, logits, weights = _few(q.view(K, G, T, D), segments, scale, softcap, sink)
    out = out.view(H, T, -1).transpose(0, 1)
    if keep is None:
        return Attended(out)
    kept_logits = logits[:, :, keep].reshape(H, len(keep), -1)
    kept_weights = weights[:, :, keep].reshape(H, len(keep), -1)
    return Attended(out, kept_logits, kept_weights)
