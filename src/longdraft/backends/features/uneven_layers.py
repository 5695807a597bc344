"""Layers whose heads differ in number or width from those of other layers."""

from __future__ import annotations

from typing import Any, Self

from longdraft.backends.features.feature import Feature
from longdraft.backends.layer_configs import differs


class UnevenLayers(Feature):
    """Fields of the config differ by layer (layer_configs.py)."""

    models = "Gemma 4, OpenELM"
    computed = "the cache has the heads and widths of each layer"

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        return cls() if differs(hf.config.get_text_config()) else None
