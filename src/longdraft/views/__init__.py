"""Which cached keys a pass may read: one policy per file."""

from __future__ import annotations

from longdraft.views.base import Full, Policy, View
from longdraft.views.chunks import Chunks
from longdraft.views.controls import RandomSlots
from longdraft.views.guided import Guided
from longdraft.views.partial import Partial
from longdraft.views.quest import Quest
from longdraft.views.retrieval import Retrieval
from longdraft.views.sink_window import SinkWindow
from longdraft.views.snapkv import SnapKV

__all__ = [
    "Chunks",
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
