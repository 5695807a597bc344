"""The chance that a proposed token is accepted, learned from what verification showed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

# Set by benchmarks/copying_simulation.py (docs/log).
FADE = 0.98  # weight of a node's outcome after the next one of the same bucket
TREND_FADE = 0.99  # the same for the outcomes of all buckets together
PRIOR_WEIGHT = 8.0  # nodes that the prior of a bucket counts as
TREND_WEIGHT = 8.0  # accepted and refused nodes that are evidence for the priors as they are, each
LARGEST = 0.995  # an expected chance: no token is certain


class Guess(NamedTuple):
    """A proposed token's bucket, and the chance that is expected in this bucket before any of its
    tokens was seen: less than 1.
    """

    bucket: Hashable
    prior: float


@dataclass
class Outcomes:
    """Fading counts. expected: the sum of what was expected of the nodes. accepted <= tried."""

    accepted: float = 0.0
    tried: float = 0.0
    expected: float = 0.0

    def add(self, accepted: bool, expected: float, fade: float) -> None:
        self.accepted = fade * self.accepted + accepted
        self.tried = fade * self.tried + 1.0
        self.expected = fade * self.expected + expected


class Calibration:
    """The chances of one source's tokens depend on this source's outcomes alone, and only nodes
    whose parent was accepted are outcomes.

    A bucket's chance moves from its prior to the share of its nodes that were accepted. The odds of
    all buckets' nodes, over those that were expected, correct the odds of the priors: a source that
    is wrong is believed less in buckets that it has not used yet, and one that is right more, but
    never so much that a rare token counts as certain.
    """

    def __init__(self) -> None:
        self._by_bucket: dict[Hashable, Outcomes] = {}
        self._together = Outcomes()

    def chance(self, guess: Guess) -> float:
        """The chance that this token is accepted if its parent is."""
        odds = guess.prior / (1.0 - guess.prior) * self._trend
        prior = min(odds / (1.0 + odds), LARGEST)
        seen = self._by_bucket.get(guess.bucket)
        if seen is None:
            return prior
        chance = (seen.accepted + PRIOR_WEIGHT * prior) / (seen.tried + PRIOR_WEIGHT)
        return min(chance, LARGEST)

    @property
    def _trend(self) -> float:
        """The odds of a node over those that were expected."""
        seen = self._together
        refused = seen.tried - seen.accepted
        expected = seen.tried - seen.expected
        accepted = (seen.accepted + TREND_WEIGHT) / (seen.expected + TREND_WEIGHT)
        return accepted * (expected + TREND_WEIGHT) / (refused + TREND_WEIGHT)

    def add(self, guess: Guess, accepted: bool) -> None:
        """The parent of such a token was accepted; was the token?"""
        self._by_bucket.setdefault(guess.bucket, Outcomes()).add(accepted, guess.prior, FADE)
        self._together.add(accepted, guess.prior, TREND_FADE)

    def fade(self, share: float) -> None:
        """Let all that was seen count this much less."""
        for seen in (*self._by_bucket.values(), self._together):
            seen.accepted *= share
            seen.tried *= share
            seen.expected *= share
