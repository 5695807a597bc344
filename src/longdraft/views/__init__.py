"""Views of the cache that a pass may read, with one policy for each way to select keys."""

from __future__ import annotations

from longdraft.views.base import Full, Policy, View
from longdraft.views.coded import Coded
from longdraft.views.guided import Guided, RandomSlots
from longdraft.views.partial import Partial
from longdraft.views.prompt_selection import Chunks, SnapKV
from longdraft.views.quest import Quest
from longdraft.views.retrieval import Retrieval
from longdraft.views.sink_window import SinkWindow

__all__ = [
    "Chunks",
    "Coded",
    "Full",
    "Guided",
    "Partial",
    "Policy",
    "Quest",
    "RandomSlots",
    "Retrieval",
    "SinkWindow",
    "SnapKV",
    "View",
]
