"""longdraft: long-context decoding several times faster, without changing one token."""

from __future__ import annotations

from longdraft.engine import Stats, Step, generate, stream
from longdraft.errors import InputError
from longdraft.loading import load
from longdraft.methods import METHODS, build
from longdraft.sampling import Sampler
from longdraft.verify import match, reject

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "InputError",
    "Sampler",
    "Stats",
    "Step",
    "build",
    "generate",
    "load",
    "match",
    "reject",
    "stream",
]
