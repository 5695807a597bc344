"""Recurrences of layers with a state: one token after the other, in float32, in one fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft import ops
from longdraft.core.states import Inputs, Recurrence
from longdraft.ops.scan import Terms, chain


class Scan(Recurrence, Protocol):
    """A recurrence that has an output for each token."""

    def run(self, state: Tensor | None, inputs: Inputs, queries: Inputs) -> tuple[Tensor, Tensor]:
        """Outputs [T,..] in float32 of T tokens that follow each other, and the state after them.

        state None: they are the first tokens. queries [T,..]: what the outputs depend on besides the states.
        """
        ...

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        """The same recurrence as kernels are given it."""
        ...


def on_gpu(scan: Scan, state: Tensor | None, inputs: Inputs, queries: Inputs | None) -> tuple[Tensor, Tensor] | None:
    """What `run` returns, by one launch; None where torch computes scans."""
    if (gpu := ops.scans(inputs[0])) is None:
        return None
    out, saved = gpu.along(scan.terms(inputs, queries), state, chain(len(inputs[0]), inputs[0].device))
    return out, saved[0]


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of each channel: its state is the last `size` - 1 inputs [size-1,C].

    inputs: x [T,C].
    """

    size: int

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        (x,) = inputs
        return torch.cat([self.before(state, x), x])[len(x) :].clone()

    def before(self, state: Tensor | None, x: Tensor) -> Tensor:
        """The inputs [size-1,C] to the left of x, zeros before the first token."""
        return x.new_zeros(self.size - 1, x.shape[1]) if state is None else state


@dataclass(frozen=True)
class DeltaRule:
    """Gated delta rule (Gated DeltaNet; Kimi delta attention, whose gate has a number for each channel of a key).

    S [H,Dk,Dv] becomes exp(g) S + k (beta (v - k exp(g) S)). inputs: k [T,Hk,Dk], v [T,H,Dv], g [T,H] or [T,H,Dk],
    beta [T,H]; queries: q [T,Hk,Dk]. normalised: whether keys and queries are divided by their length.
    """

    normalised: bool

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        computed = on_gpu(self, state, inputs, None)
        return self._run(state, inputs, None)[1] if computed is None else computed[1]

    def run(self, state: Tensor | None, inputs: Inputs, queries: Inputs) -> tuple[Tensor, Tensor]:
        if (computed := on_gpu(self, state, inputs, queries)) is not None:
            return computed
        out, state = self._run(state, inputs, queries[0])
        return torch.stack(out), state

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        k, v, g, beta = inputs
        return Terms(k, v, g, beta, None if queries is None else queries[0], k.shape[2] ** -0.5, self.normalised)

    def _run(self, state: Tensor | None, inputs: Inputs, queries: Tensor | None) -> tuple[list[Tensor], Tensor]:
        k, v, g, beta = (x.float() for x in inputs)
        heads = v.shape[1]
        k = self._by_value_head(k, heads)
        q = None if queries is None else self._by_value_head(queries.float(), heads) * k.shape[2] ** -0.5
        decay = (g if g.ndim == 3 else g[..., None]).exp()[..., None]
        state = k.new_zeros(heads, k.shape[2], v.shape[2]) if state is None else state
        out = list[Tensor]()
        for t in range(len(k)):
            state = state * decay[t]
            delta = (v[t] - (state * k[t, :, :, None]).sum(1)) * beta[t, :, None]
            state = state + k[t, :, :, None] * delta[:, None]
            if q is not None:
                out.append((state * q[t, :, :, None]).sum(1))
        return out, state

    def _by_value_head(self, x: Tensor, heads: int) -> Tensor:
        if self.normalised:
            x = x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


@dataclass(frozen=True)
class Additive:
    """A decaying sum of outer products: S [H,N,P] becomes exp(d) S + k v.

    inputs: d [T,H] or [T,H,N], k [T,G,N] for H/G heads each, v [T,H,P]; queries: q [T,G,N].
    """

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        computed = on_gpu(self, state, inputs, None)
        return self._run(state, inputs, None)[1] if computed is None else computed[1]

    def run(self, state: Tensor | None, inputs: Inputs, queries: Inputs) -> tuple[Tensor, Tensor]:
        if (computed := on_gpu(self, state, inputs, queries)) is not None:
            return computed
        out, state = self._run(state, inputs, queries[0])
        return torch.stack(out), state

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        d, k, v = inputs
        return Terms(k, v, d, q=None if queries is None else queries[0])

    def _run(self, state: Tensor | None, inputs: Inputs, queries: Tensor | None) -> tuple[list[Tensor], Tensor]:
        d, k, v = (x.float() for x in inputs)
        heads = v.shape[1]
        k = k.repeat_interleave(heads // k.shape[1], 1)
        q = None if queries is None else queries.float().repeat_interleave(heads // queries.shape[1], 1)
        decay = (d if d.ndim == 3 else d[..., None]).exp()[..., None]
        state = k.new_zeros(heads, k.shape[2], v.shape[2]) if state is None else state
        out = list[Tensor]()
        for t in range(len(k)):
            state = state * decay[t] + k[t, :, :, None] * v[t, :, None]
            if q is not None:
                out.append((state * q[t, :, :, None]).sum(1))
        return out, state


@dataclass(frozen=True)
class StateSpace:
    """Mamba's selective scan (Mamba, sec. 3.2; Mamba-2, whose decay A has a number for each head, not channel).

    inputs: x [T,H,P], dt [T,H], B [T,G,N]; queries: C [T,G,N]. A [H] or [H,N], negative.
    """

    A: Tensor

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        return Additive().replay(state, self._terms(inputs))

    def run(self, state: Tensor | None, inputs: Inputs, queries: Inputs) -> tuple[Tensor, Tensor]:
        return Additive().run(state, self._terms(inputs), queries)

    def terms(self, inputs: Inputs, queries: Inputs | None) -> Terms:
        return Additive().terms(self._terms(inputs), queries)

    def _terms(self, inputs: Inputs) -> Inputs:
        x, dt, B = inputs
        dt = dt.float()
        return (dt[..., None] * self.A if self.A.ndim == 2 else dt * self.A), B, x.float() * dt[..., None]


def time_steps(dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float] | None = None) -> Tensor:
    """dt [..,H] with its bias [H], as Mamba discretises with it."""
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = F.softplus(dt) if softplus else dt
    return dt if limit is None else dt.clamp(*limit)


def convolved(x: Tensor, taps: Tensor, bias: Any) -> Tensor:
    """x [..,K,C], the inputs that each output reads, oldest first; taps [C,K] and bias [C] -> [..,C] in float32."""
    out = torch.zeros_like(x[..., 0, :], dtype=torch.float32) if bias is None else bias.float().expand_as(x[..., 0, :])
    for i in range(taps.shape[1]):
        out = out + x[..., i, :].float() * taps[:, i].float()
    return out
