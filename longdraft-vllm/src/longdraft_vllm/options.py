"""Options of the methods, which vLLM passes on from --additional-config '{"longdraft": {...}}'."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def options_of(vllm_config: Any, method: str, accepts: Callable[..., Any], own: tuple[str, ...] = ()) -> dict[str, Any]:
    """The user's options, checked against the keyword arguments of `accepts` less `own`. Raises ValueError."""
    extra = getattr(vllm_config, "additional_config", None)
    found = extra.get("longdraft", {}) if isinstance(extra, dict) else {}
    known = [name for name in inspect.signature(accepts).parameters if name not in ("self", *own)]
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise ValueError(f"{method} has no option {', '.join(unknown)}; its options are {', '.join(known)}")
    return dict(found)
