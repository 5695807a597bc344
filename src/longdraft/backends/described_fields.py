"""Fields of descriptions that a backend reads, and those that it would leave out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from torch import Tensor

from longdraft.backends.decoder_layer import (
    Attention,
    Decoder,
    DecoderLayer,
    GatedMLP,
    Linear,
    Norm,
    Rotation,
)


def unread(part: Any, read: Mapping[type, Collection[str]]) -> list[str]:
    """The parts that a backend that reads these fields of a description would leave out: kinds
    of parts that it does not know, and fields without their default.
    """
    kind = type(part)
    if kind not in read:
        return [kind.__name__]
    left = list[str]()
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name not in read[kind]:
            default = field.default
            absent = default is not MISSING and not isinstance(value, Tensor) and value == default
            left += [] if absent else [field.name]
            continue
        for inner in value if isinstance(value, tuple) else (value,):
            left += unread(inner, read) if is_dataclass(inner) else []
    return left


# The fields of a model like Llama, which every kernel of ours reads.
LLAMA_LIKE: Mapping[type, frozenset[str]] = {
    Decoder: frozenset({"embedding", "layers", "norm", "head", "rotation"}),
    DecoderLayer: frozenset({"mixer", "mlp", "input_norm", "mlp_norm"}),
    Attention: frozenset(
        {"q", "k", "v", "o", "heads", "key_heads", "dim", "scale", "rotation", "q_norm", "k_norm"}
    ),
    GatedMLP: frozenset({"gate", "up", "down", "activation"}),
    Linear: frozenset({"module", "name", "shape"}),
    Norm: frozenset({"module", "name", "shape", "eps"}),  # of the default kind
    Rotation: frozenset({"kind", "frequencies", "scaling"}),
}
