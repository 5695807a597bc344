"""longdraft's methods inside an unmodified vLLM: see README.md for the commands.

Each name is imported when it is first used, so that vLLM's processes that do not use it do not import longdraft.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Lookup": "proposers",
    "MagicdecStream": "views",
    "Recycle": "recycle",
    "Suffix": "proposers",
    "Vegas": "views",
}
__all__ = ["Lookup", "MagicdecStream", "Recycle", "Suffix", "Vegas", "register"]


def register() -> None:
    """Called by vLLM in each of its processes (entry point `vllm.general_plugins`)."""
    from longdraft_vllm import plugin, v2

    plugin.install()
    v2.install()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"longdraft_vllm.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
