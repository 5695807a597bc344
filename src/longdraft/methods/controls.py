"""What a guided choice of keys must beat: methods that see as many, chosen without a thought."""

from __future__ import annotations

from longdraft.core.options import Method, at_least, share
from longdraft.drafters import Drafter, SelfDrafter
from longdraft.models.lm import LM
from longdraft.views import RandomSlots, RecentSlots


def random_picks(target: LM, gamma: int = 7, keep_ratio: float = 0.07, min_budget: int = 256, seed: int = 0) -> Drafter:
    """Control: the target drafts seeing random slots, as many as vegas picks."""
    at_least(1, gamma=gamma, min_budget=min_budget)
    share(keep_ratio=keep_ratio)
    return SelfDrafter(target, RandomSlots(keep_ratio, min_budget, seed), [1] * gamma)


def recents(target: LM, gamma: int = 7, keep_ratio: float = 0.07, min_budget: int = 256) -> Drafter:
    """Control: the target drafts seeing the latest slots alone, as many as vegas picks."""
    at_least(1, gamma=gamma, min_budget=min_budget)
    share(keep_ratio=keep_ratio)
    return SelfDrafter(target, RecentSlots(keep_ratio, min_budget), [1] * gamma)


CONTROLS = {
    "random-picks": Method(random_picks, "control"),
    "recents": Method(recents, "control"),
}
