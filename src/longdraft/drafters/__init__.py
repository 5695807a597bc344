"""Drafters: one kind per file."""

from __future__ import annotations

from longdraft.drafters.auto import Auto
from longdraft.drafters.base import Drafter, Then, beam
from longdraft.drafters.eagle import Eagle
from longdraft.drafters.glide import GlideDrafter
from longdraft.drafters.glide_block import Glide, random_glide
from longdraft.drafters.heads import Heads, Medusa
from longdraft.drafters.hierarchical import Hierarchical
from longdraft.drafters.lm import LMDrafter
from longdraft.drafters.ngram import Lookup
from longdraft.drafters.oracle import Oracle
from longdraft.drafters.pace import Pace
from longdraft.drafters.recycle import Recycle
from longdraft.drafters.reuse import Reuse
from longdraft.drafters.selfdraft import SelfDrafter
from longdraft.drafters.suffix import Suffix

__all__ = [
    "Auto",
    "Drafter",
    "Eagle",
    "Glide",
    "GlideDrafter",
    "Heads",
    "Hierarchical",
    "LMDrafter",
    "Lookup",
    "Medusa",
    "Oracle",
    "Pace",
    "Recycle",
    "Reuse",
    "SelfDrafter",
    "Suffix",
    "Then",
    "beam",
    "random_glide",
]
