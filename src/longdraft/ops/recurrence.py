"""Recurrences of layers with a state along the paths of a tree, by a native kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.ops import native
from longdraft.ops.scan import Order, Terms


def has_kernel(*tensors: Tensor) -> bool:
    """Whether `along` computes with these tensors.

    Needs a CPU with a native build, and no gradients.
    """
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return all(x.is_cpu for x in tensors) and not wanted and native.library() is not None


def along(terms: Terms, state: Tensor | None, order: Order) -> tuple[Tensor, Tensor]:
    """See scan.along. The given state is not written to.

    The bits of a path do not depend on threads, on outputs, on other paths, nor on how it is
    divided into calls.
    """
    lib = native.library()
    assert lib is not None
    decay, k, v = (_numbers(x) for x in (terms.gate, terms.k, terms.v))
    beta = None if terms.beta is None else _numbers(terms.beta)
    q = None if terms.q is None else _numbers(terms.q)
    T, H, P = v.shape
    _, G, N = k.shape
    W = 0 if q is None else len(q)
    right = [
        (T, H, N)[: decay.ndim],
        (T, G, N),
        *[(T, H)] * (beta is not None),
        *[(W, G, N)] * (q is not None),
    ]
    actual = [tuple(x.shape) for x in (decay, k, beta, q) if x is not None]
    if actual != right or W > T or (state is not None and state.shape != (H, N, P)):
        raise ValueError(
            f"a recurrence of {T} tokens, {H} heads, {N} keys and {P} values has shapes {actual}"
        )
    before = None if state is None else _numbers(state)
    after = torch.empty(order.kept, H, N, P)
    out = (torch.empty if order.all else torch.zeros)(W, H, P)
    if not len(order.steps):
        return out, after
    s = native.Scan(
        tokens=T, heads=H, key_heads=G, keys=N, values=P, first=T - W, per_key=decay.ndim == 3,
        normalized=terms.normalized, scale=terms.scale, steps=len(order.steps), slots=order.saved,
        order=_address(order.steps), before=_address(before), kept=order.kept,
        after=_address(after),
        decay=_address(decay), k=_address(k), v=_address(v), beta=_address(beta), q=_address(q),
        out=None if q is None else _address(out),
    )  # fmt: skip
    lib.longdraft_scan(s)
    return out, after


def _numbers(x: Tensor) -> Tensor:
    return x.detach().float().contiguous()


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
