"""Checks that a module is one that is known in all its parts: of its class, unchanged and with no
attribute that nothing reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from torch import nn
from transformers.activations import ACT2FN

from longdraft.families import ModelFamily

# modules whose hooks only record, or change nothing outside a pass of Dense
RECORDERS = ("transformers.", "longdraft.backends.architecture", "longdraft.backends.dense")
# modules of classes of activations
ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
SILU = {nn.SiLU, type(ACT2FN["silu"])}
OWN = vars(nn.Module()).keys()  # attributes of every module


class Unknown(Exception):
    """Modules that no description covers. The message says why."""


def read_by(module: Any, name: str, holder: Any) -> Any:
    """This attribute of the holder, if the module's forward reads it; raises Unknown for one of the
    module that it does not read.
    """
    value = getattr(holder, name, None)
    if reads(module, name):
        return value
    if holder is module and value is not None:
        raise Unknown(f"{type(module).__name__} has {name} and does not read it")
    return None


def reads(module: Any, name: str) -> bool:
    """Whether the code of the module's forward has this name."""
    return name in inspect.unwrap(type(module).forward).__code__.co_names


def name_of(activation: Any) -> str:
    unchanged(activation)
    kind = type(activation)
    if kind.__module__ not in ACTIVATIONS:
        raise Unknown(f"{kind.__name__} is no activation of torch or Transformers")
    return "silu" if kind in SILU else kind.__name__


def class_of(family: ModelFamily, name: str) -> Any:
    """A class in the file of a family's model. None: there is none of this name."""
    return getattr(family.modeling, name, None)


def check(
    module: nn.Module,
    cls: Any,
    parts: Collection[str],
    attributes: Collection[str] | None = None,
    optional: Collection[str] = (),
) -> None:
    """Raises Unknown unless a module is of this class, unchanged, and has these parts (modules,
    parameters and buffers) and attributes (None: any) alone.
    """
    kind = type(module)
    if kind is not cls:
        raise Unknown(f"{kind.__name__} is not the class that its family has there")
    unchanged(module)
    held = {name for name, _ in module.named_children()}
    held |= {name for name, _ in module.named_parameters(recurse=False)}
    held |= {name for name, _ in module.named_buffers(recurse=False)}
    if other := sorted((held ^ set(parts)) - set(optional)):
        raise Unknown(f"{kind.__name__} has {other[0]} and should not, or lacks it")
    if attributes is None:
        return
    public = {name for name in vars(module).keys() - OWN if not name.startswith("_")}
    if other := sorted(public - set(attributes)):
        raise Unknown(f"{kind.__name__} has {other[0]}, for which a description has no field")


def unchanged(module: nn.Module) -> None:
    """Raises Unknown for a module with hooks that do more than record, or with another forward."""
    # torch has no public list of a module's hooks
    before = module._forward_pre_hooks.values()  # pyright: ignore[reportPrivateUsage]
    after = module._forward_hooks.values()  # pyright: ignore[reportPrivateUsage]
    recorded = (getattr(hook, "__module__", "").startswith(RECORDERS) for hook in (*before, *after))
    if not all(recorded) or "forward" in vars(module):
        raise Unknown(f"{type(module).__name__} has hooks, or another forward than its class")
