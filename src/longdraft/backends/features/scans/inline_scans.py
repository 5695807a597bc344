"""Recurrent layers whose scan is no function of their module: hooks give it to the pass, and put in
its outputs.

What the modules compute inline is discarded. Hooks and methods stay, and do nothing outside of a
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.current_pass import current
from longdraft.backends.features.scans.recurrences import Additive
from longdraft.errors import InputError

# what MiniMax's lightning attention consists of
LIGHTNING = (
    "qkv_proj",
    "act_fn",
    "slope_rate",
    "norm",
    "out_proj",
)
GRIFFIN = ("conv_1d", "rg_lru")  # and RecurrentGemma's recurrent block
# and Zaya's projections to attention
COMPRESSED = (
    "v_proj_delayed",
    "conv_qk_depthwise",
    "conv_qk_grouped",
)
# by classes' endings
INLINE = {
    "LightningAttention": LIGHTNING,
    "RecurrentBlock": GRIFFIN,
    "CCAProjection": COMPRESSED,
}


def is_inline(module: Any) -> bool:
    return any(_has(module, names) for names in INLINE.values())


def _has(module: Any, names: tuple[str, ...]) -> bool:
    return all(hasattr(module, name) for name in names)


def hook(module: Any) -> None:
    """Let an inline scan run in passes; done once for each module."""
    if hasattr(module, "of_longdraft"):
        return
    module.of_longdraft = True
    if _has(module, LIGHTNING):
        _hook_lightning(module)
    elif _has(module, COMPRESSED):
        _hook_compressed(module)
    else:
        _hook_griffin(module)


def _hook_griffin(module: Any) -> None:
    rg_lru: Any = type(module.rg_lru)
    if not hasattr(rg_lru, "_rnn_scan"):
        raise InputError(
            f"{rg_lru.__name__} has no _rnn_scan in this version of Transformers: use another one"
        )
    if not hasattr(rg_lru._rnn_scan, "of_longdraft"):
        rg_lru._rnn_scan = _in_passes(rg_lru._rnn_scan)
    module.conv_1d.register_forward_hook(_convolved())


def _hook_compressed(module: Any) -> None:
    """Two convolutions of queries and keys, one behind the other, and half of the values from the
    token before.
    """

    def keep(first: Any, args: tuple[Tensor]) -> None:
        current().projected = None if current().recurrent is None else (first, args[0])

    def convolved(last: Any, args: Any, output: Tensor) -> Tensor | None:
        if (p := current().recurrent) is None:
            return None
        first, padded = current().projected
        size = first.kernel_size[0] + last.kernel_size[0] - 1
        x = p.windows(padded[..., size - 1 :].mT, size)
        current().projected = None
        return type(last).forward(last, first.forward(x.flatten(0, 1).mT)).view(*x.shape[:2], -1).mT

    def delayed(own: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> Any:
        if (p := current().recurrent) is None:
            return None
        query, key, value = output
        late: Tensor = own.v_proj_delayed(p.windows(args[0], 2)[:, :, 0])
        values = value.flatten(2)
        return query, key, torch.cat([values[..., : -late.shape[-1]], late], -1).view(value.shape)

    module.conv_qk_depthwise.register_forward_pre_hook(keep)
    module.conv_qk_grouped.register_forward_hook(convolved)
    module.register_forward_hook(delayed)


def _hook_lightning(module: Any) -> None:
    """The activation's output is queries, keys and values of each head; the norm reads the scan's
    outputs.
    """
    slopes: Tensor = module.slope_rate.flatten()

    def keep(_: Any, args: Any, output: Tensor) -> None:
        current().projected = None if current().recurrent is None else output

    def put_in(_: Any, args: tuple[Tensor]) -> tuple[Tensor] | None:
        if (p := current().recurrent) is None:
            return None
        q, k, v = current().projected.unflatten(-1, (len(slopes), -1)).chunk(3, -1)
        current().projected = None
        decay = -slopes.to(q.device).expand(q.shape[:3])
        return (p.scan(Additive(), (decay, k, v), (q,)).flatten(2).to(args[0].dtype),)

    module.act_fn.register_forward_hook(keep)
    module.norm.register_forward_pre_hook(put_in)


def _in_passes(original: Callable[..., Any]) -> Callable[..., Any]:
    """An RG-LRU's scan h = a h + x of channels x [B,W,C] with gates a [B,W,C]: heads with one
    number each.
    """

    @wraps(original)
    def call(
        module: Any,
        hidden_states: Tensor,
        recurrent_gate: Tensor,
        reset: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if (p := current().recurrent) is None:
            return original(module, hidden_states, recurrent_gate, reset, *args, **kwargs)
        decay = torch.where(reset, 0.0, recurrent_gate.float()).log()
        ones = torch.ones_like(decay[..., :1, None])
        out = p.scan(Additive(), (decay, ones, hidden_states[..., None]), (ones,))[..., 0]
        return out.to(hidden_states.dtype), None

    call.of_longdraft = True  # type: ignore[attr-defined]
    return call


def _convolved() -> Any:
    def replace(module: Any, args: tuple[Tensor], output: Tensor) -> Tensor | None:
        p = current().recurrent
        return None if p is None else p.convolve(args[0], module.weight[:, 0], module.bias)

    return replace
