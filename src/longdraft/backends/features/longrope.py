"""Rotations with one set of factors for short texts and another for long ones (longrope).

Transformers chooses the factors of a pass by its last position, so a text's keys would change when
it grows beyond the border. Here a row has the same factors from its first token to its last, by the
length that its text may reach.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Feature
from longdraft.backends.layout import layout_of
from longdraft.core import KVCache
from longdraft.errors import InputError


class LongRope(Feature):
    """A row whose text may reach more than `border` tokens has the long factors at all positions;
    others the short.
    """

    models = "Phi-3, PhiMoE"
    computed = "per row, by the length that its request can reach"

    def __init__(self, modules: list[Any], border: int):
        self.border = border
        for module in modules:
            for name, x in module.named_buffers(recurse=False):
                # passes write to them, and a quantized copy of the model shares them
                setattr(module, name, x.clone())
            module.register_forward_hook(_hook(self), with_kwargs=True)

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        """Raises InputError for layers with their own borders."""
        modules: list[Any] = [m for m in layout_of(hf).body.modules() if _is_long(m)]
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
        return cls(modules, borders.pop())

    def long(self, cache: KVCache) -> list[bool]:
        """For each row, whether it has the long factors."""
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

    def positions(self, position: Tensor, cache: KVCache) -> Tensor:
        """position [B,W] of nodes, those of short rows below the border: a node beyond it cannot be
        committed.
        """
        self.check(cache, 0)
        long = cache.planned > self.border
        return torch.where(long[:, None], position, position.clamp(max=self.border - 1))

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        assert p.cache is not None
        p.kept[self] = self.long(p.cache)
        yield


def _hook(feature: LongRope) -> Any:
    """A hook that returns the rotations of the pass's rows in place of those that its positions
    would give.

    It is a function, which is not copied with a module: a copy's passes have their own feature.
    """
    border = feature.border

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        long: list[bool] = current().kept.get(feature, [])
        if not any(long):
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
