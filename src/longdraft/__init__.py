"""longdraft: speculative decoding for long contexts, without changing a single token.

Each public name is imported when it is first used, so that `longdraft --help` does not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longdraft.version import __version__ as __version__

if TYPE_CHECKING:
    from longdraft.constraints import Constraints
    from longdraft.core.rules import Rules
    from longdraft.core.sampling import Sampler
    from longdraft.core.verify import match, reject
    from longdraft.drafters import AdaptiveDraft
    from longdraft.engine.generate import Stats, Step, generate, stream
    from longdraft.engine.scheduler import serve
    from longdraft.engine.session import Event, Session
    from longdraft.errors import Busy, InputError
    from longdraft.hf import hf_generate
    from longdraft.methods import METHODS, build
    from longdraft.models.loading import load
    from longdraft.ops import row_seed
    from longdraft.prompts.prefix_cache import PrefixCache
    from longdraft.prompts.prompt_file import PromptFile
    from longdraft.prompts.prompt_folder import PromptFolder

__all__ = [
    "METHODS",
    "AdaptiveDraft",
    "Busy",
    "Constraints",
    "Event",
    "InputError",
    "PrefixCache",
    "PromptFile",
    "PromptFolder",
    "Rules",
    "Sampler",
    "Session",
    "Stats",
    "Step",
    "build",
    "generate",
    "hf_generate",
    "load",
    "match",
    "reject",
    "row_seed",
    "serve",
    "stream",
]
_HOMES = {
    "constraints": ("Constraints",),
    "errors": ("Busy", "InputError"),
    "core.rules": ("Rules",),
    "core.sampling": ("Sampler",),
    "core.verify": ("match", "reject"),
    "drafters": ("AdaptiveDraft",),
    "prompts.prefix_cache": ("PrefixCache",),
    "prompts.prompt_file": ("PromptFile",),
    "prompts.prompt_folder": ("PromptFolder",),
    "engine.generate": ("Stats", "Step", "generate", "stream"),
    "engine.scheduler": ("serve",),
    "engine.session": ("Event", "Session"),
    "hf": ("hf_generate",),
    "methods": ("METHODS", "build"),
    "models.loading": ("load",),
    "ops": ("row_seed",),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'longdraft' has no attribute {name!r}")
    return getattr(import_module(f"longdraft.{home}"), name)
