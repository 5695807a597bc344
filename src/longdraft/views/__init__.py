"""Views of the target's cache: one policy per file."""

from __future__ import annotations

from longdraft.views.base import Full, Policy, View
from longdraft.views.controls import RandomPicks, Recents
from longdraft.views.guided import Guided
from longdraft.views.sink_window import SinkWindow

__all__ = ["Full", "Guided", "Policy", "RandomPicks", "Recents", "SinkWindow", "View"]
