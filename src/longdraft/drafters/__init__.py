"""Drafters, one kind per module or package."""

from __future__ import annotations

from longdraft.drafters.adaptive.adaptive_draft import AdaptiveDraft
from longdraft.drafters.base import Drafter
from longdraft.drafters.beam_search import beam
from longdraft.drafters.dflash.drafter import DFlash
from longdraft.drafters.eagle.drafter import Eagle
from longdraft.drafters.fill.drafter import Fill
from longdraft.drafters.glide.block import Glide, random_glide
from longdraft.drafters.glide.drafter import GlideDrafter
from longdraft.drafters.heads.drafter import Heads, Medusa
from longdraft.drafters.hierarchical import Hierarchical
from longdraft.drafters.mtp.drafter import Mtp
from longdraft.drafters.ngram.lookup import Lookup
from longdraft.drafters.ngram.recycle import Recycle
from longdraft.drafters.ngram.reuse import Reuse
from longdraft.drafters.ngram.suffix import Suffix
from longdraft.drafters.oracle import Oracle
from longdraft.drafters.plain import PlainDecoding
from longdraft.drafters.self_draft import SelfDrafter
from longdraft.drafters.sequential import Sequential
from longdraft.drafters.small_model.drafter import SmallModelDrafter

__all__ = [
    "AdaptiveDraft",
    "DFlash",
    "Drafter",
    "Eagle",
    "Fill",
    "Glide",
    "GlideDrafter",
    "Heads",
    "Hierarchical",
    "Lookup",
    "Medusa",
    "Mtp",
    "Oracle",
    "PlainDecoding",
    "Recycle",
    "Reuse",
    "SelfDrafter",
    "Sequential",
    "SmallModelDrafter",
    "Suffix",
    "beam",
    "random_glide",
]
