"""longdraft's methods inside an unmodified vLLM: see README.md for the commands.

Each name is imported when it is first used, so that vLLM's processes that do not use it do not
import longdraft.
"""

from __future__ import annotations

from typing import Any

from longdraft_vllm.options import METHODS

__all__ = ["register", *METHODS]


def register() -> None:
    """Called by vLLM in each of its processes (entry point `vllm.general_plugins`)."""
    from longdraft_vllm import plugin, v2

    plugin.install()
    v2.install()


def __getattr__(name: str) -> Any:
    if name in METHODS:
        return METHODS[name].load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
