"""Drafters: one kind per file."""

from __future__ import annotations

from longdraft.drafters.base import Drafter, Then, beam
from longdraft.drafters.ngram import Lookup
from longdraft.drafters.oracle import Oracle
from longdraft.drafters.selfdraft import SelfDrafter

__all__ = ["Drafter", "Lookup", "Oracle", "SelfDrafter", "Then", "beam"]
