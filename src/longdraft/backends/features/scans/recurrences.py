"""Recurrences of layers with a state: one token after the other, in float32, in one fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft import ops
from longdraft.core.states import Inputs
from longdraft.ops import recurrence
from longdraft.ops.scan import Order, Terms, along, chain


class Scan:
    """A recurrence that has an output for each token; what kernels are given of it says what it
    computes.
    """

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        """The steps of tokens. queries [T,..]: what outputs depend on besides the states; None: no
        outputs.
        """
        raise NotImplementedError

    def along(
        self, state: Tensor | None, inputs: Inputs, queries: Inputs | None, order: Order
    ) -> tuple[Tensor, Tensor]:
        """Same contract as ops.scan.along: outputs in float32 of the last tokens, which have
        queries, and the kept states.
        """
        terms = self.terms(inputs, queries)
        if (gpu := ops.scans(terms.k)) is not None:
            return gpu.along(terms, state, order)
        return (recurrence.along if recurrence.has_kernel(*terms.tensors) else along)(
            terms, state, order
        )

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        """Same contract as Recurrence.replay: the state after these tokens."""
        return self.along(state, inputs, None, chain(len(inputs[0]), inputs[0].device))[1][0]

    def run(self, state: Tensor | None, inputs: Inputs, queries: Inputs) -> tuple[Tensor, Tensor]:
        """Outputs [T,..] in float32 of T tokens that follow each other, and the state after them.

        state None: they are the first tokens.
        """
        out, kept = self.along(state, inputs, queries, chain(len(inputs[0]), inputs[0].device))
        return out, kept[0]


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of each channel: its state is the last `size` - 1 inputs [size-1,C].

    inputs: x [T,C].
    """

    size: int

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        (x,) = inputs
        if len(x) < self.size - 1:
            x = torch.cat([self.before(state, x), x])
        return x[len(x) - self.size + 1 :].clone()

    def before(self, state: Tensor | None, x: Tensor) -> Tensor:
        """The inputs [size-1,C] to the left of x, zeros before the first token."""
        return x.new_zeros(self.size - 1, x.shape[1]) if state is None else state


@dataclass(frozen=True)
class DeltaRule(Scan):
    """Gated delta rule (Gated DeltaNet; Kimi delta attention, whose gate has a number for each
    channel of a key).

    S [H,Dk,Dv] becomes exp(g) S + k (beta (v - k exp(g) S)). inputs: k [T,Hk,Dk], v [T,H,Dv], g
    [T,H] or [T,H,Dk], beta [T,H]; queries: q [T,Hk,Dk]. normalized: whether keys and queries are
    divided by their length.
    """

    normalized: bool

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        k, v, g, beta = inputs
        return Terms(
            k,
            v,
            g,
            beta,
            None if queries is None else queries[0],
            k.shape[2] ** -0.5,
            self.normalized,
        )


@dataclass(frozen=True)
class Additive(Scan):
    """A decaying sum of outer products: S [H,N,P] becomes exp(d) S + k v.

    inputs: d [T,H] or [T,H,N], k [T,G,N] for H/G heads each, v [T,H,P]; queries: q [T,G,N].
    """

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        d, k, v = inputs
        return Terms(k, v, d, q=None if queries is None else queries[0])


@dataclass(frozen=True)
class StateSpace(Scan):
    """Mamba's selective scan (Mamba, sec. 3.2; Mamba-2, whose decay A has a number for each head,
    not channel).

    inputs: x [T,H,P], dt [T,H], B [T,G,N]; queries: C [T,G,N]. A [H] or [H,N], negative.
    """

    A: Tensor

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        x, dt, B = inputs
        dt = dt.float()
        decay = dt[..., None] * self.A if self.A.ndim == 2 else dt * self.A
        return Additive().terms((decay, B, x.float() * dt[..., None]), queries)


def time_steps(
    dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float] | None = None
) -> Tensor:
    """dt [..,H] with its bias [H], as Mamba discretizes with it."""
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = F.softplus(dt) if softplus else dt
    return dt if limit is None else dt.clamp(*limit)


def convolved(x: Tensor, taps: Tensor, bias: Any) -> Tensor:
    """x [..,K,C], the inputs that each output reads, oldest first; taps [C,K] and bias [C] ->
    [..,C] in float32.
    """
    out = (
        torch.zeros_like(x[..., 0, :], dtype=torch.float32)
        if bias is None
        else bias.float().expand_as(x[..., 0, :])
    )
    for i in range(taps.shape[1]):
        out = out + x[..., i, :].float() * taps[:, i].float()
    return out
