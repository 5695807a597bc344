"""The layer whose keys an attention module computes: some modules are told it in each call (Zamba's
shared blocks).
"""

from __future__ import annotations

import inspect
from typing import Any

from longdraft.backends.current_pass import current

ARGUMENT = "layer_idx"  # of the forward of a module that several layers share the weights of


def follow_layers(hf: Any) -> None:
    """Let `number_of` know the layer of every module of the model that is told it. The hooks stay
    registered.
    """
    for module in hf.modules():
        if not hasattr(module, ARGUMENT) or hasattr(module, "follows_layers"):
            continue
        names = list(inspect.signature(type(module).forward).parameters)[1:]
        if ARGUMENT in names:
            module.register_forward_pre_hook(_before(names.index(ARGUMENT)), with_kwargs=True)
            module.follows_layers = True


def _before(place: int) -> Any:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get(ARGUMENT, args[place] if len(args) > place else None)
        current().layer = module.layer_idx if given is None else given

    return hook


def number_of(module: Any) -> int:
    """The layer for which an attention module runs."""
    if not hasattr(module, "follows_layers"):
        return module.layer_idx
    layer = current().layer
    assert layer is not None
    return layer
