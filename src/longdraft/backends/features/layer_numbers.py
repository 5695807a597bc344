"""The layer whose keys an attention module computes: some modules are told it in each call (Zamba's
shared blocks).
"""

from __future__ import annotations

import inspect
from typing import Any, Self

from torch import Tensor

from longdraft.backends.current_pass import current
from longdraft.backends.features.feature import Attend, Call, Feature

ARGUMENT = "layer_idx"  # of the forward of a module that several layers share the weights of


class LayerNumbers(Feature):
    """Modules are told in each call which layer they compute."""

    models = "Zamba"
    computed = "a hook keeps the number for the attention function"

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        """The hooks stay registered."""
        modules = [m for m in hf.modules() if hasattr(m, ARGUMENT)]
        for module in modules:
            names = list(inspect.signature(type(module).forward).parameters)[1:]
            if ARGUMENT in names and not hasattr(module, "follows_layers"):
                module.register_forward_pre_hook(_before(names.index(ARGUMENT)), with_kwargs=True)
                module.follows_layers = True
        return cls() if any(hasattr(m, "follows_layers") for m in modules) else None

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        call.layer = number_of(call.module)
        return proceed(call)


def number_of(module: Any) -> Any:
    """The layer for which an attention module runs."""
    return current().layer if hasattr(module, "follows_layers") else module.layer_idx


def _before(place: int) -> Any:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get(ARGUMENT, args[place] if len(args) > place else None)
        current().layer = module.layer_idx if given is None else given

    return hook
