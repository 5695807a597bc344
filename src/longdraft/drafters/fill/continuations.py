"""Continuations of a drafted path that the text has had before."""

from __future__ import annotations

from typing import NamedTuple

from longdraft.drafters.fill.calibration import Guess
from longdraft.drafters.ngram.recent_text import Match, RecentText
from longdraft.drafters.ngram.suffix import Suffix

WIDEST = 4  # continuations of one node: others are rarely accepted
# The expected chance of a continuation, by the bit length of its match's length: of 0, 1, 2 to 3,
# 4 to 7, 8 to 15, 16 to 31 and more tokens. Of the only one after the only place of the match, of
# the only one after several places, and of one of several, divided by its share of the places.
# Counted in SmolLM2's answers to the tasks of `bench tasks`, and tried on other models' (docs/log).
ONCE = (0.0, 0.25, 0.5, 0.72, 0.85, 0.93, 0.98)
ALWAYS = (0.0, 0.4, 0.72, 0.85, 0.93, 0.96, 0.985)
AMONG = (0.0, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
SHARES = 4  # parts into which the shares of a match's continuations are divided


class Proposal(NamedTuple):
    """A token that may follow, and the match that it would be the end of."""

    token: int
    guess: Guess
    match: Match


class Continuations:
    """Proposes the tokens that followed a match in the row's own text, the commonest first; its
    guesses depend on the length of the match and on how often each token followed.
    """

    def __init__(self, suffix: Suffix):
        self.suffix = suffix

    def _text(self, b: int) -> RecentText:
        return self.suffix.rows[b]

    def at_root(self, b: int) -> Match:
        """The match of row b's text."""
        return self._text(b).repeated()

    def after(self, b: int, match: Match, token: int) -> Match:
        """The match once this token has been drafted."""
        return self._text(b).follow(match, token)

    def level(self, live: list[bool]) -> int:
        """The level of the longest match of a row that is running."""
        rows = (b for b, on in enumerate(live) if on)
        return max((_level(self.at_root(b).length) for b in rows), default=0)

    def proposals(self, b: int, match: Match) -> list[Proposal]:
        """Tokens that followed this match, or a shorter one if nothing did."""
        if not match.length:
            return []
        text = self._text(b)
        match = text.followed(match)
        found = text.followers(match)
        total = sum(len(longer.ends) for _, longer in found)
        return [
            Proposal(token, _guess(match.length, len(longer.ends), total), longer)
            for token, longer in found[:WIDEST]
        ]


def _guess(length: int, count: int, total: int) -> Guess:
    level = _level(length)
    share = count / total
    if total == 1:
        chance = ONCE[level]
    elif count == total:
        chance = ALWAYS[level]
    else:
        chance = AMONG[level] * share
    return Guess((level, round(SHARES * share), total > 1), chance)


def _level(length: int) -> int:
    """The place in these tables of a match of this length."""
    return min(length.bit_length(), len(ONCE) - 1)
