"""Controls: methods that read as many cache slots as vegas, selected without looking at attention."""

from __future__ import annotations

from longdraft.core.options import Depth, NotNegative, Positive, Share
from longdraft.drafters import Drafter, SelfDrafter
from longdraft.methods.method import Method
from longdraft.models.lm import LM
from longdraft.views import RandomSlots, SinkWindow


def random_picks(
    target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256, seed: NotNegative = 0
) -> Drafter:
    """Control: the target drafts and reads randomly selected slots, as many as vegas reads."""
    return SelfDrafter(target, RandomSlots(keep_ratio, min_budget, seed), [1] * gamma)


def recents(target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256) -> Drafter:
    """Control: the target drafts and reads only the latest slots, as many as vegas reads."""
    return SelfDrafter(target, SinkWindow(0, keep_ratio, min_budget), [1] * gamma)


CONTROLS = {
    "random-picks": Method(random_picks, "control"),
    "recents": Method(recents, "control"),
}
