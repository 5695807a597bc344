"""The earlier places of a string in a text, found by looking: nothing is indexed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
# Longer matches are told apart only where they grow token by token.
LONGEST = 64
# Of more places only the latest count: for a string that is so common, others add nothing.
MOST = 256
# Up to so many places are compared in Python, more of them by numpy.
FEW = 16
# A match is followed through so many new tokens, and looked for again after more.
FOLLOWED = 8
NOWHERE = -(1 << 62)  # fills the front of a buffer: no token


class Match(NamedTuple):
    """A string that a text has, of `length` tokens: where it ends, in ascending order."""

    ends: list[int]
    length: int


NO_MATCH = Match([], 0)


class RecentText:
    """The latest tokens of a stream, at least `most` and fewer than 2 * `most`; the places of a
    string among them are found at any time.

    Tokens cost next to nothing until a match is asked for, which scans the text unless it continues
    an earlier match. seen: the tokens of the stream. A place is a token's number plus LONGEST, so
    that there are so many before each.
    """

    def __init__(self, most: int):
        self.most = most
        self.seen = 0
        self._text = [NOWHERE] * LONGEST
        self._array: Tokens = np.array(self._text, np.int64)  # the same, and room for more
        self._repeated: Match | None = NO_MATCH  # None: to be looked for

    @property
    def tokens(self) -> list[int]:
        return self._text[LONGEST:]

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen += len(tokens)
        if len(self._text) - LONGEST + len(tokens) >= 2 * self.most:
            tokens = [*self.tokens, *tokens][-self.most :]
            del self._text[LONGEST:]
            self._repeated = None
        begin = len(self._text)
        self._append(tokens)
        if len(tokens) > FOLLOWED:
            self._repeated = None
        for end, token in enumerate(tokens, begin):
            if self._repeated is None:
                break
            self._repeated = self._grown(self._repeated, token, end)

    def _append(self, tokens: Sequence[int]) -> None:
        begin = len(self._text)
        self._text += tokens
        end = len(self._text)
        if end > len(self._array):
            larger = np.empty(2 * end, np.int64)
            larger[:begin] = self._array[:begin]
            self._array = larger
        self._array[begin:end] = tokens

    def _grown(self, match: Match, token: int, end: int) -> Match | None:
        """The match and this token, among the tokens before `end`; None: there is none."""
        text = self._text
        ends = [e + 1 for e in match.ends if e + 1 < end and text[e + 1] == token]
        return Match(ends, match.length + 1) if ends else None

    def repeated(self) -> Match:
        """The longest suffix of the text that ended before its end."""
        if self._repeated is None:
            end = len(self._text)
            self._repeated = self._longest(self._text[max(end - LONGEST, LONGEST) :], end - 1)
        return self._repeated

    def follow(self, match: Match, token: int) -> Match:
        """The longest suffix, of a match's string and then this token, that the text has."""
        end = len(self._text)
        grown = self._grown(match, token, end)
        return grown or self._longest([*self._string(match)[1 - LONGEST :], token], end)

    def followed(self, match: Match) -> Match:
        """The longest suffix of a match's string that anything followed: another one than the match
        if this is at the end of the text alone.
        """
        last = len(self._text) - 1
        if match.ends and match.ends[0] < last:
            return match
        return self._longest(self._string(match), last)

    def followers(self, match: Match) -> list[tuple[int, Match]]:
        """Each token that followed a match, with the match that it would be the end of: the
        commonest first, and of those the one that was first.
        """
        text = self._text
        length = match.length + 1
        found: dict[int, list[int]] = {}
        for end in match.ends:
            if end + 1 < len(text):
                found.setdefault(text[end + 1], []).append(end + 1)
        if len(found) > 1:
            found = dict(sorted(found.items(), key=lambda item: -len(item[1])))
        return [(token, Match(ends, length)) for token, ends in found.items()]

    def _string(self, match: Match) -> list[int]:
        """The last tokens of a match's string."""
        if not match.length:
            return []
        end = match.ends[0] + 1
        return self._text[end - min(match.length, LONGEST) : end]

    def _longest(self, string: list[int], before: int) -> Match:
        """The longest suffix of a string, of at most LONGEST tokens, that ends before this
        place.
        """
        if not string:
            return NO_MATCH
        array = self._array
        ends = np.flatnonzero(array[LONGEST:before] == string[-1]) + LONGEST
        length = min(1, len(ends))
        while len(ends) > FEW and length < len(string):
            longer = ends[array[ends - length] == string[-1 - length]]
            if not len(longer):
                return Match(ends[-MOST:].tolist(), length)
            ends = longer
            length += 1
        return self._compared(ends[-MOST:].tolist(), length, string)

    def _compared(self, ends: list[int], length: int, string: list[int]) -> Match:
        """The longest suffix of a string that ends at some of these places, where its last `length`
        tokens do.
        """
        text = self._text
        while length < len(string):
            token = string[-1 - length]
            longer = [e for e in ends if text[e - length] == token]
            if not longer:
                break
            ends = longer
            length += 1
        return Match(ends, length)
