"""Layers that see the latest positions alone, or those of a node's own chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from longdraft.backends.features.feature import Feature
from longdraft.backends.features.span import Chunk, Window
from longdraft.errors import InputError

SLIDING = frozenset({"sliding_attention", "hybrid_sliding"})
CHUNKED = "chunked_attention"


class Windows(Feature):
    """A node sees the latest `size` positions."""

    models = "Mistral, Gemma, gpt-oss"
    computed = "keys before the window are not read; views select from the other layers only"
    layer_types = SLIDING

    def __init__(self, sizes: Mapping[int, int]):
        self.spans = {layer: Window(size) for layer, size in sizes.items()}

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        sizes = windows_of(hf.config)
        return cls(sizes) if sizes else None


class ChunkedWindows(Feature):
    """A node sees the positions of its own chunk."""

    models = "Llama 4"
    computed = "a mask by positions, also for siblings on both sides of a border"
    layer_types = frozenset({CHUNKED})

    def __init__(self, layers: list[int], size: int):
        self.spans = dict.fromkeys(layers, Chunk(size))

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        layers = _layers(hf.config, cls.layer_types)
        cls.refuse(hf.config)
        return cls(layers, hf.config.get_text_config().attention_chunk_size) if layers else None

    @classmethod
    def refuse(cls, config: Any) -> None:
        c = config.get_text_config()
        if _layers(config, cls.layer_types) and not getattr(c, "attention_chunk_size", None):
            raise InputError(
                f"this {c.model_type} has chunked layers and no attention_chunk_size: give it one"
            )


def _layers(config: Any, kinds: frozenset[str]) -> list[int]:
    """The numbers of the layers of these types."""
    types = getattr(config.get_text_config(), "layer_types", None) or []
    return [n for n, kind in enumerate(types) if kind in kinds]


def windows_of(config: Any) -> dict[int, int]:
    """{layer: size} of the layers that see a window of this size, read from the config.

    The attention argument is not enough: some architectures put the window in their mask alone.
    """
    c = config.get_text_config()
    window: int | None = getattr(c, "sliding_window", None)
    kinds = getattr(c, "attention_layers", None) or ()
    local = [n for n, kind in enumerate(kinds) if kind == "local"]
    if local:  # GPT-Neo
        return dict.fromkeys(local, getattr(c, "window_size", 0))
    if window is None:
        return {}
    if getattr(c, "layer_types", None) is None:
        used = getattr(c, "use_sliding_window", True)
        return dict.fromkeys(range(c.num_hidden_layers), window) if used else {}
    return dict.fromkeys(_layers(config, SLIDING), window)
