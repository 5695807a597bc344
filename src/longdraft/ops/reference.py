"""The specification of attention, slow and simple, against which every implementation is tested."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Segment:
    """Consecutive keys that one row attends to: k [K,S,D], v [K,S,Dv].

    visible [T,M] bool: which of the last M keys each query sees; all queries see the S-M keys
    before them. None: every query sees every key.
    """

    k: Tensor
    v: Tensor
    visible: Tensor | None = None


@dataclass
class Attended:
    """The result of attention: out [T,H,Dv], and logits and weights of the requested query rows.

    logits, weights [H,R,S]: over the keys of all segments in order.
    """

    out: Tensor
    logits: Tensor | None = None
    weights: Tensor | None = None


def full_mask(segment: Segment, queries: int) -> Tensor:
    """[T,S] bool: which of a segment's keys each query sees."""
    mask = torch.ones(queries, segment.k.shape[1], dtype=torch.bool, device=segment.k.device)
    if segment.visible is not None:
        mask[:, mask.shape[1] - segment.visible.shape[1] :] = segment.visible
    return mask


def attend_one(
    q: Tensor, segment: Segment, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over one segment: q [H,T,D] -> out [H,T,Dv], log-sum-exp [H,T], logits [H,T,S].

    The logits are scaled and masked.
    """
    groups = q.shape[0] // segment.k.shape[0]
    k, v = (x.repeat_interleave(groups, 0) for x in (segment.k, segment.v))
    logits = q @ k.mT * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    logits = logits.masked_fill(~full_mask(segment, q.shape[1]), float("-inf"))
    lse = logits.logsumexp(-1)
    weights = (logits - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    return weights @ v, lse, logits


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint keys (LongSpec sec. 3.3).

    Two (out [H,T,D], lse [H,T]) -> that of the union.
    """
    out_a, lse_a = a
    out_b, lse_b = b
    share = torch.sigmoid(lse_a - lse_b).nan_to_num(0.0)[..., None]
    return out_a * share + out_b * (1 - share), torch.logaddexp(lse_a, lse_b)


def attend(
    q: Tensor,
    segments: list[Segment],
    scale: float,
    softcap: float | None = None,
    sink: Tensor | None = None,
    keep: list[int] | None = None,
) -> Attended:
    """Attention of one row over the union of its segments.

    Computed for one segment at a time, and merged by log-sum-exp.
    q [H,T,D]; every query must see at least one key. sink [H]: a logit that takes weight but has no
    value.
    keep: the query rows whose logits and weights are returned.
    """
    parts = [attend_one(q, s, scale, softcap) for s in segments]
    out, lse = parts[0][:2]
    for part in parts[1:]:
        out, lse = merge((out, lse), part[:2])
    if sink is not None:
        out = out * torch.sigmoid(lse - sink[:, None])[..., None]
        lse = torch.logaddexp(lse, sink[:, None])
    if keep is None:
        return Attended(out.transpose(0, 1))
    logits = torch.cat([p[2][:, keep] for p in parts], -1)
    return Attended(out.transpose(0, 1), logits, (logits - lse[:, keep, None]).exp())
