"""What a guided choice of keys must beat: methods that see as many, chosen without a thought."""

from __future__ import annotations

from longdraft.drafters import Drafter, SelfDrafter
from longdraft.models.lm import LM
from longdraft.core.options import Method, at_least, share
from longdraft.views import RandomPicks, Recents


def random_picks(target: LM, gamma: int = 7, ratio: float = 0.07, floor: int = 256, seed: int = 0) -> Drafter:
    """Control: the target drafts seeing random slots, as many as vegas picks."""
    at_least(1, gamma=gamma, floor=floor)
    share(ratio=ratio)
    return SelfDrafter(target, RandomPicks(ratio, floor, seed), [1] * gamma)


def recents(target: LM, gamma: int = 7, ratio: float = 0.07, floor: int = 256) -> Drafter:
    """Control: the target drafts seeing the latest slots alone, as many as vegas picks."""
    at_least(1, gamma=gamma, floor=floor)
    share(ratio=ratio)
    return SelfDrafter(target, Recents(ratio, floor), [1] * gamma)


CONTROLS = {
    "random-picks": Method(random_picks, "control"),
    "recents": Method(recents, "control"),
}
