"""A state that runs along the paths of a tree: its kernels' arguments, and their specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# the state before a step: the committed one, that of the step before, or a saved one
COMMITTED = -2
ON = -1


@dataclass(frozen=True)
class Terms:
    """A step of state S [H,N,P], which becomes exp(gate) S + k u.

    Its output is scale S q, summed over N. u is v, or with beta (v - k exp(gate) S) beta (delta
    rule). k [T,G,N] for H/G heads each, v [T,H,P], gate [T,H] or [T,H,N], beta [T,H], and q [W,G,N]
    of the last W tokens; None: no output.
    normalized: k and q are divided by their length.
    """

    k: Tensor
    v: Tensor
    gate: Tensor
    beta: Tensor | None = None
    q: Tensor | None = None
    scale: float = 1.0
    normalized: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in (self.k, self.v, self.gate, self.beta, self.q) if x is not None]


@dataclass(frozen=True)
class Order:
    """The steps of a scan over a tree.

    steps [n,3] of int32: a token, the state before it, and where its own state goes.
    The state before it: COMMITTED, ON, or a slot of the saved states. Its own: such a slot, or -1.
    saved: the number of slots, of which the first `kept` are a result; another is taken again once
    the branches after its token are complete. all: whether all tokens have a step.
    """

    steps: Tensor
    saved: int
    kept: int
    all: bool = True


@lru_cache(256)
def chain(tokens: int, device: torch.device, keep: tuple[int, ...] | None = None) -> Order:
    """The order of one token after the other.

    keep: the tokens after which the state is kept, ascending; None: the last.
    """
    keep = (tokens - 1,) if keep is None else keep
    steps = torch.full((tokens, 3), ON, dtype=torch.int32)
    steps[:, 0] = torch.arange(tokens)
    steps[:1, 1] = COMMITTED
    for slot, token in enumerate(keep):
        steps[token, 2] = slot
    return Order(steps.to(device), len(keep), len(keep))


def depth_first(
    segments: Sequence[tuple[int, list[int]]],
    tokens: int,
    device: torch.device,
    keep: tuple[int, ...] = (),
) -> Order:
    """The order of segments of tokens, depth-first.

    segments: (the segment that it follows or -1, its tokens). keep: the tokens after which the
    state is kept. That after the last token of a segment is saved too if a later segment than the
    next one follows it.
    """
    last = {after: n for n, (after, _) in enumerate(segments)}  # the last segment that follows each
    kept = {token: slot for slot, token in enumerate(keep)}
    slots = dict[int, int]()  # of a segment whose state is saved
    steps = list[tuple[int, int, int]]()
    most = len(keep)
    for n, (after, own) in enumerate(segments):
        slots = {segment: slot for segment, slot in slots.items() if last[segment] >= n}
        if after == -1:
            before = COMMITTED
        elif after == n - 1:
            before = ON
        else:
            before = slots[after]
        save = kept.get(own[-1], -1)
        if last.get(n, 0) > n + 1:
            free = set(range(len(keep), len(keep) + len(slots) + 1)) - set(slots.values())
            if save < 0:
                save = min(free)
            slots[n] = save
            most = max(most, save + 1)
        for i, token in enumerate(own):
            slot = save if i == len(own) - 1 else kept.get(token, -1)
            steps.append((token, ON if i else before, slot))
    return Order(
        torch.tensor(steps, dtype=torch.int32).reshape(-1, 3).to(device),
        most,
        len(keep),
        len(steps) == tokens,
    )


def along(
    terms: Terms, state: Tensor | None, order: Order, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The specification: outputs [W,H,P] and the kept states [kept,H,N,P].

    Outputs are zero where a token has no step.
    state None: the committed one is zero.
    """
    v = terms.v.to(dtype)
    gate = terms.gate.to(dtype)
    heads = terms.v.shape[1]
    k = _by_head(terms.k.to(dtype), heads, terms.normalized)
    q = None if terms.q is None else _by_head(terms.q.to(dtype), heads, terms.normalized)
    empty = k.new_zeros(heads, k.shape[2], v.shape[2])
    decay = (gate if gate.ndim == 3 else gate[..., None]).exp()[..., None]
    out = v.new_zeros(0 if q is None else len(q), *v.shape[1:])
    saved = v.new_zeros(order.saved, *empty.shape)
    committed = empty if state is None else state.to(dtype)
    now = empty
    first = len(k) - len(out)
    for token, before, save in order.steps.tolist():
        if before != ON:
            now = saved[before] if before >= 0 else committed
        now = now * decay[token]
        new = v[token]
        if terms.beta is not None:
            new = (new - (now * k[token, :, :, None]).sum(1)) * terms.beta[token, :, None].to(dtype)
        now = now + k[token, :, :, None] * new[:, None]
        if q is not None and token >= first:
            out[token - first] = (now * (q[token - first] * terms.scale)[:, :, None]).sum(1)
        if save >= 0:
            saved[save] = now
    return out, saved[: order.kept].clone() if 0 < order.kept < order.saved else saved[: order.kept]


def _by_head(x: Tensor, heads: int, normalized: bool) -> Tensor:
    x = x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) if normalized else x
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
