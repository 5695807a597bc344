"""Drafters: one kind per file."""

from __future__ import annotations

from longdraft.drafters.adaptive.auto import Auto
from longdraft.drafters.base import Drafter, Then, beam
from longdraft.drafters.eagle.drafter import Eagle
from longdraft.drafters.glide.drafter import GlideDrafter
from longdraft.drafters.glide.block import Glide, random_glide
from longdraft.drafters.heads.drafter import Heads, Medusa
from longdraft.drafters.hierarchical import Hierarchical
from longdraft.drafters.small_model.drafter import LMDrafter
from longdraft.drafters.ngram.lookup import Lookup
from longdraft.drafters.oracle import Oracle
from longdraft.drafters.adaptive.adaptive_draft import Pace
from longdraft.drafters.ngram.recycle import Recycle
from longdraft.drafters.ngram.reuse import Reuse
from longdraft.drafters.self_draft import SelfDrafter
from longdraft.drafters.ngram.suffix import Suffix

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
