"""Shrinks the windows and borders of a model's attention for a while.

So a short text shows the behavior of long ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

# how many of them the tokens of a probe fill
WINDOWS = {"sliding_window": 6, "attention_chunk_size": 4}
BORDER = "original_max_position_embeddings"
BETA = "llama_4_scaling_beta"


def changes_rotation(config: Any) -> bool:
    """Whether its rotations have other factors for long texts than for short ones."""
    return any(r.get("rope_type") == "longrope" for r in _ropes(config))


@contextmanager
def shrunk(hf: Any, tokens: int, long: bool = True) -> Generator[None]:
    """Shrink every window, chunk and border of a model below this many tokens, inside the block.

    Scales that grow with the position grow fast enough to show. long False: borders of rotations
    stay where they are.
    """
    # what has the number, the number's name, and the number
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, _get(owner, name)))
        _set(owner, name, value)

    config = hf.config.get_text_config()
    try:
        for name, count in WINDOWS.items():
            if getattr(config, name, None):
                change(config, name, tokens // count)
        for module in hf.modules():
            if hasattr(module, "floor_scale") and hasattr(module, "attn_scale"):
                change(module, "floor_scale", tokens // 4)
                change(module, "attn_scale", 1.0)
        for rope in _ropes(config):
            if rope.get(BETA):
                change(rope, BETA, 1.0)
            if rope.get(BETA) or (long and rope.get("rope_type") == "longrope"):
                change(rope, BORDER, tokens // 4)
                if getattr(config, BORDER, None):
                    # Transformers copies it to the rotations' parameters
                    change(config, BORDER, tokens // 4)
        yield
    finally:
        for owner, name, value in reversed(changed):
            _set(owner, name, value)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The parameters of its rotations, one for all layers or one for each kind."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [
        r for r in (parameters, *parameters.values()) if isinstance(r, dict) and r.get("rope_type")
    ]


def _get(owner: Any, name: str) -> Any:
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)
