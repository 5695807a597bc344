"""Positions that end: those of a table, and rotations that depend on the length of the text."""

from __future__ import annotations

from typing import Any, Self

from longdraft.backends.features.feature import Feature
from longdraft.backends.layout import layout_of

# Kinds of rotations that do not depend on the length of the text.
ROPES = {"default", "linear", "llama3", "yarn", "proportional", "ntk_alpha"}


class BoundedPositions(Feature):
    """count: how many positions a model can be given."""

    models = "GPT-2, OPT, and rotations that change with the length"
    computed = "later positions are clamped, and longer requests refused"

    def __init__(self, count: int):
        self.count = count

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        return None if rotates(hf) else cls(trained_positions(hf.config.get_text_config()))


def trained_positions(config: Any) -> int:
    """How many positions a model was trained on."""
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


def rotates(hf: Any) -> bool:
    """Whether all positions are rotations of a kind in ROPES, so that the model accepts any
    position.
    """
    kinds = getattr(layout_of(hf).rotary, "rope_type", None)
    if kinds is None:
        return False
    return set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= ROPES
