"""Rotations with one set of factors for short texts and another for long ones (longrope).

Transformers chooses the factors of a pass by its last position, so a text's keys would change when
it grows beyond the border. Here a row has the same factors from its first token to its last, by the
length that its text may reach.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from longdraft.backends.current_pass import CurrentPass, current, passing
from longdraft.core import KVCache
from longdraft.errors import InputError


class LongRope:
    """A row whose text may reach more than `border` tokens has the long factors at all positions;
    others the short.
    """

    def __init__(self, modules: list[Any], border: int, owner: object):
        self.border = border
        self._owner = owner
        hook = _hook(border, owner)
        for module in modules:
            for name, x in module.named_buffers(recurse=False):
                # passes write to them, and a quantized copy of the model shares them
                setattr(module, name, x.clone())
            module.register_forward_hook(hook, with_kwargs=True)

    @classmethod
    def of(cls, body: nn.Module, owner: object) -> LongRope | None:
        """A decoder's, in passes of `owner`; None without such rotations.

        Raises InputError for layers with their own borders.
        """
        modules: list[Any] = [m for m in body.modules() if _is_long(m)]
        if not modules:
            return None
        kinds = (modules[0].config.rope_parameters or {}).values()
        by_layer = [r for r in kinds if isinstance(r, dict)] or [modules[0].config.rope_parameters]
        borders = {
            r["original_max_position_embeddings"] for r in by_layer if r["rope_type"] == "longrope"
        }
        if len(borders) != 1:
            raise InputError(
                f"layers change their rotations at {sorted(borders)} tokens: use a model "
                "with one border"
            )
        return cls(modules, borders.pop(), owner)

    def long(self, cache: KVCache) -> list[bool]:
        """Of each row, whether it has the long factors."""
        return (cache.planned > self.border).tolist()

    def check(self, cache: KVCache, new: int) -> None:
        """Raises InputError if `new` more tokens of its rows would take a short one across the
        border.
        """
        if bool(((cache.length + new > self.border) & (cache.planned <= self.border)).any()):
            text = f"this cache was made for texts of up to {self.border} tokens"
            raise InputError(
                f"{text}, where the model's rotation changes: make one with room for the whole text"
            )

    def clamp(self, position: Tensor, cache: KVCache) -> Tensor:
        """position [B,W] of nodes, those of short rows below the border: a node beyond it cannot be
        committed.
        """
        self.check(cache, 0)
        long = cache.planned > self.border
        return torch.where(long[:, None], position, position.clamp(max=self.border - 1))

    def rotating(self, long: list[bool]) -> AbstractContextManager[CurrentPass]:
        """A pass of rows with long or short factors, by this thread."""
        return passing(owner=self._owner, long=long)


def _hook(border: int, owner: object) -> Any:
    """A hook that returns the rotations of the pass's rows in place of those that its positions
    would give.

    It holds no lock and no model, so that modules with it can be copied.
    """

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        p = current()
        long = p.long if p.owner is owner else None
        if not long or not any(long):
            return output
        given = {**dict(zip(("x", "position_ids", "layer_type"), args, strict=False)), **kwargs}
        position: Tensor = given.pop("position_ids")
        # the last position decides
        beyond = torch.cat([position, torch.full_like(position[:, :1], border)], 1)
        rotations = _each(lambda r: r[:, :-1], module.forward(position_ids=beyond, **given))
        if all(long):
            return rotations
        short = module.forward(position_ids=position.clamp(max=border - 1), **given)
        chosen = torch.tensor(long, device=position.device)[:, None, None]
        return _each(lambda a, b: torch.where(chosen, a, b), rotations, short)

    return hook


def _is_long(module: Any) -> bool:
    kind = getattr(module, "rope_type", None)
    return "longrope" in (kind.values() if isinstance(kind, dict) else [kind])


def _each(function: Any, *outputs: Any) -> Any:
    """Apply it to a rotation [B,W,..], or to each part of one (cosines, sines)."""
    if isinstance(outputs[0], tuple):
        return tuple(function(*parts) for parts in zip(*outputs, strict=True))
    return function(*outputs)
