"""Replaces the functions that Transformers' recurrent layers call in their module by longdraft's
own computation.

The model's own projections, norms and gates stay unchanged. Only the causal convolution and the
scan are replaced, and only while a pass of longdraft runs in the thread. Final states, where they
are asked for, are empty: nothing of Transformers keeps them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Feature
from longdraft.backends.features.scans.inline_scans import INLINE, hook, is_inline
from longdraft.backends.features.scans.recurrences import DeltaRule, StateSpace, time_steps
from longdraft.backends.features.scans.recurrent_pass import RecurrentPass
from longdraft.backends.layout import layout_of
from longdraft.errors import InputError

# layer types with a state and without keys, and those with both
RECURRENT = {"linear_attention", "conv", "mamba", "recurrent"}
MIXED = {"hybrid", "hybrid_sliding"}


class Scans(Feature):
    """count: of the recurrent layers; each scans at least once in a pass."""

    models = "Qwen3.5, Mamba 2, Jamba, Bamba, Kimi Linear, MiniMax"
    computed = "committed states, and the inputs of later tokens, from which they are replayed"
    layer_types = frozenset({*RECURRENT, *MIXED})
    undivided = " has layers with states, which are not divided yet"

    def __init__(self, kind: str, count: int):
        self.kind = kind
        self.count = count

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        count = take_over(layout_of(hf).layers)
        return cls(hf.config.get_text_config().model_type, count) if count else None

    @classmethod
    def keeps_state(cls, model: type, config: Any) -> bool:
        return has_scans(model)

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        """Raises InputError where not every layer scans."""
        assert p.tree is not None and p.cache is not None
        p.recurrent = RecurrentPass(p.tree, p.cache, p.start)
        yield
        if p.recurrent.calls < self.count:
            fault = (
                f"{self.count - p.recurrent.calls} of its {self.count} recurrent layers did not "
                "scan in a pass"
            )
            raise InputError(f"{self.kind}: {fault}, so its output would be wrong")
        p.recurrent.finish()


def _convolution(
    p: RecurrentPass,
    original: Any,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """hidden_states [B,C,W], weight [C,K] -> [B,C,W]."""
    out = p.convolve(hidden_states, weight, bias)
    return out if activation is None else ACT2FN[activation](out)


def _delta_rule(
    p: RecurrentPass,
    original: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """query, key [B,W,Hk,Dk], value [B,W,H,Dv], g [B,W,H] or [B,W,H,Dk], beta [B,W,H] ->
    [B,W,H,Dv].
    """
    _check(original, initial_state)

    def in_chunks(b: int, nodes: slice, state: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v, d, w = (x[b : b + 1, nodes] for x in (query, key, value, g, beta))
        before = None if state is None else state[None]
        how = {"output_final_state": True, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
        out, after = original(q, k, v, g=d, beta=w, initial_state=before, **how)
        return out[0], after[0]

    scan = DeltaRule(use_qk_l2norm_in_kernel)
    out = p.scan(scan, (key, value, g, beta), (query,), in_chunks).to(query.dtype)
    return out, out.new_zeros(0) if output_final_state else None


def _mamba2(
    p: RecurrentPass,
    original: Any,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """hidden_states [B,W,H,P], dt [B,W,H], A [H], B, C [B,W,G,N], D [H] -> [B,W,H,P] in float32."""
    _check(original, initial_states, z)
    x = hidden_states.float()
    dt = time_steps(dt, dt_bias, dt_softplus, dt_limit)

    def in_chunks(b: int, nodes: slice, state: Tensor | None) -> tuple[Tensor, Tensor]:
        h, t, k, q = (y[b : b + 1, nodes] for y in (hidden_states, dt, B, C))
        before = None if state is None else state.mT[None]
        out, after = original(
            h, t, A, k, q, chunk_size=chunk_size, initial_states=before, return_final_states=True
        )
        return out[0], after[0].mT.contiguous()

    out = p.scan(StateSpace(A.float()), (hidden_states, dt, B), (C,), in_chunks)
    out = out if D is None else out + D[:, None] * x
    return (out, out.new_zeros(0)) if return_final_states else out


def _mamba(
    p: RecurrentPass,
    original: Any,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """hidden_states, dt, z [B,D,W], A [D,N], B, C [B,N,W] -> [B,D,W]."""
    x = hidden_states.mT
    dt = time_steps(dt.mT, delta_bias, delta_softplus)
    inputs = (x[..., None], dt, B.mT[:, :, None])
    queries = (C.mT[:, :, None],)
    out = p.scan(StateSpace(A.float()), inputs, queries)[..., 0].to(x.dtype)
    out = out if D is None else out + x * D
    out = (out if z is None else out * torch.nn.functional.silu(z.mT)).mT
    return (out, out.new_zeros(0)) if return_last_state else out


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba,
}


def _check(original: Any, *unknown: Any) -> None:
    if any(x is not None for x in unknown):
        raise InputError(
            f"{original.__name__} is given arguments that longdraft does not know: use "
            "another model"
        )


def has_scans(cls: type) -> bool:
    """Whether longdraft knows the recurrent layers of this class of models, if it has any."""
    names = vars(sys.modules[cls.__module__])
    return bool(FUNCTIONS.keys() & names.keys()) or any(
        name.endswith(tuple(INLINE)) for name in names
    )


def scans_in(modules: nn.Module) -> dict[nn.Module, set[str]]:
    """The modules inside that are recurrent layers, and what of FUNCTIONS they call; nothing if
    they are inline.
    """
    called = {module: _called(type(module)) for module in modules.modules()}
    return {module: names for module, names in called.items() if names or is_inline(module)}


@cache
def _called(cls: type[nn.Module]) -> set[str]:
    """The names in FUNCTIONS that the modules of a class call."""
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return set() if code is None else FUNCTIONS.keys() & set(code.co_names)


def take_over(layers: nn.Module) -> int:
    """Let a model's recurrent layers scan in passes of longdraft -> how many do, each at least
    once.
    """
    scans = scans_in(layers)
    for module, names in scans.items():
        if not names:
            hook(module)
        home = vars(sys.modules[type(module).__module__])
        for name in names:
            if not hasattr(home[name], "of_longdraft"):
                home[name] = _replaced(home[name], FUNCTIONS[name])
    return len(scans)


def _replaced(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        p = current().recurrent
        return original(*args, **kwargs) if p is None else ours(p, original, *args, **kwargs)

    call.of_longdraft = True  # type: ignore[attr-defined]
    return call
