"""longdraft: long-context decoding several times faster, without changing one token.

The names below are imported when first used, so that `longdraft --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longdraft.engine.scheduler import serve
    from longdraft.drafters import Pace
    from longdraft.engine.generate import Stats, Step, generate, stream
    from longdraft.core.errors import InputError
    from longdraft.models.loading import load
    from longdraft.methods import METHODS, build
    from longdraft.ops import row_seed
    from longdraft.core.rules import Rules
    from longdraft.core.sampling import Sampler
    from longdraft.engine.session import Event, Session
    from longdraft.core.verify import match, reject

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "Event",
    "InputError",
    "Pace",
    "Rules",
    "Sampler",
    "Session",
    "Stats",
    "Step",
    "build",
    "generate",
    "load",
    "match",
    "reject",
    "row_seed",
    "serve",
    "stream",
]
_HOMES = {
    "continuous": ("serve",),
    "drafters": ("Pace",),
    "engine": ("Stats", "Step", "generate", "stream"),
    "errors": ("InputError",),
    "loading": ("load",),
    "methods": ("METHODS", "build"),
    "ops": ("row_seed",),
    "rules": ("Rules",),
    "sampling": ("Sampler",),
    "session": ("Event", "Session"),
    "verify": ("match", "reject"),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'longdraft' has no attribute {name!r}")
    return getattr(import_module(f"longdraft.{home}"), name)
