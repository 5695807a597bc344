"""Sizes that a drafter's layer takes from its target's config, whatever the config calls them."""

from __future__ import annotations

from typing import Any

MLP = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "dff", "mlp_hidden_size")


def mlp_width(config: Any) -> int:
    """The width of the target's widest MLP; four times its hidden size where the config has no
    number.
    """
    given = (getattr(config, name, None) for name in MLP)
    width = next((n for n in given if n is not None), 4 * config.hidden_size)
    return int(max(width) if isinstance(width, list | tuple) else width)


def query_heads(config: Any) -> int:
    """Query heads of a layer of a drafter's own: of 64 numbers each for a target without
    attention.
    """
    heads = getattr(config, "num_attention_heads", None)
    return max(1, config.hidden_size // 64) if heads is None else int(heads)


def key_heads(config: Any) -> int:
    """Key heads of a layer of a drafter's own: as many as the target's layers have, where that is
    one number.
    """
    given = getattr(config, "num_key_value_heads", None)
    return given if isinstance(given, int) and given else query_heads(config)
