"""Options of the methods, which vLLM passes on from --additional-config '{"longdraft": {...}}'."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

KEYED = "keyed_noise"  # the option that belongs to no method


def given(vllm_config: Any) -> dict[str, Any]:
    """All that the user gave."""
    extra = getattr(vllm_config, "additional_config", None)
    return dict(extra.get("longdraft", {})) if isinstance(extra, dict) else {}


def keyed_noise(vllm_config: Any) -> bool:
    """Whether seeded requests are to draw by keyed noise. Raises ValueError."""
    found = given(vllm_config).get(KEYED, False)
    if not isinstance(found, bool):
        raise ValueError(f"{KEYED} is {found!r}: give true or false")
    return found


def options_of(vllm_config: Any, method: str, accepts: Callable[..., Any]) -> dict[str, Any]:
    """The user's options, checked against the keyword arguments of `accepts`. Raises ValueError."""
    found = {name: value for name, value in given(vllm_config).items() if name != KEYED}
    known = [name for name in inspect.signature(accepts).parameters if name != "self"]
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise ValueError(f"{method} has no option {', '.join(unknown)}; its options are {', '.join([*known, KEYED])}")
    return found
