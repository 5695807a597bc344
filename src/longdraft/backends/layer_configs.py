"""Reads a config layer by layer: some give fields such as the number of key heads by layer, and
raise if asked for all layers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def layer_configs(config: Any) -> Sequence[Any]:
    """A config for each layer, from which every field can be read; the same one where layers do not
    differ.
    """
    return config.per_layer_config if differs(config) else [config] * config.num_hidden_layers


def differs(config: Any) -> bool:
    """Whether fields of this config differ by layer, so that some cannot be read from it."""
    return bool(getattr(config, "is_heterogeneous", False))


def values_of(config: Any, name: str) -> list[Any]:
    """The values of a field, without repeats, in the order of the layers; None for one that is
    missing.
    """
    values: list[Any] = []
    for c in layer_configs(config):
        if (value := getattr(c, name, None)) not in values:
            values.append(value)
    return values
