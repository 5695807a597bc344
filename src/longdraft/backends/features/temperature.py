"""Attention temperatures that depend on a node's position, of modules that count positions by their
own cache.

Llama 4 multiplies the queries of layers without rotations by a scale that grows with the position.
Its modules read the position from Transformers' cache; a pass has none, so they would count from 0
in each.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from longdraft.backends.current_pass import current
from longdraft.backends.features.feature import Attend, Call, Feature

FIELDS = ("attn_temperature_tuning", "floor_scale", "attn_scale", "use_rope")


class OutsidePasses:
    """Takes the place of a module's flag: true, except in a thread that runs a pass, whose queries
    Temperature scales.

    So Transformers' own passes of the same module stay right.
    """

    def __bool__(self) -> bool:
        return current().position is None


class Temperature(Feature):
    """Queries are scaled by the positions of their nodes."""

    models = "Llama 4"
    computed = (
        "longdraft's attention scales them, because the modules count positions in Transformers'"
        " cache"
    )

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        modules: list[Any] = [m for m in hf.modules() if all(hasattr(m, name) for name in FIELDS)]
        tuned = [m for m in modules if m.attn_temperature_tuning and not m.use_rope]
        for module in tuned:
            module.attn_temperature_tuning = OutsidePasses()
        return cls() if tuned else None

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        call.query = tempered(call.module, call.query)
        return proceed(call)


def tempered(module: Any, query: Tensor) -> Tensor:
    """query [B,H,W,D] of a layer, scaled by its nodes' positions if the layer's module would do
    so.
    """
    if not isinstance(getattr(module, "attn_temperature_tuning", None), OutsidePasses):
        return query
    position = current().position
    assert position is not None
    scale = (
        torch.log1p(torch.floor((position.float() + 1.0) / module.floor_scale)) * module.attn_scale
        + 1.0
    )
    return (query * scale[:, None, :, None]).to(query.dtype)
