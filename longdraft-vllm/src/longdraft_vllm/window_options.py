"""The options of a window for vLLM's trained drafters (window.py); this imports no torch."""

from __future__ import annotations

from typing import Any

from longdraft_vllm.options import given

SINK = 4  # tokens
METHODS = ("eagle", "eagle3", "mtp", "dflash")  # of vLLM
NAMES = ("drafter_window", "drafter_sink")


def window_of(vllm_config: Any) -> tuple[int, int] | None:
    """How many of the latest and the first tokens vLLM's drafter is to read; None: all. Raises
    ValueError.
    """
    options = {name: value for name, value in given(vllm_config).items() if name in NAMES}
    if not options:
        return None
    for name, least in zip(NAMES, (1, 0), strict=True):
        value = options.get(name, SINK)
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}: give a number of tokens, at least {least}")
    if NAMES[0] not in options:
        raise ValueError("drafter_sink needs drafter_window: give it too")
    spec = vllm_config.speculative_config
    if spec is None or spec.method not in METHODS:
        raise ValueError(f"drafter_window is for vLLM's methods {', '.join(METHODS)}")
    return options["drafter_window"], options.get("drafter_sink", SINK)
