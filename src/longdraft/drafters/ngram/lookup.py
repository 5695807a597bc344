"""Prompt lookup: drafts copied from earlier in the same sequence."""

from __future__ import annotations

from longdraft.core import Captures, DraftLimits, Sequences, Tree, Verdict, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.price import CopyPrice

# the longest n-grams that are indexed; longer matches are searched where the last SHORT tokens
# occurred
SHORT = 4
TRIES = 128  # occurrences that such a search compares, latest first


class _Index:
    """The latest end of each n-gram of a growing sequence, for n in 1..min(longest, SHORT), and the
    earlier ends of those of SHORT tokens. Memory is proportional to the sequence, however long
    matches may be.

    An n-gram is added once a token follows it, so a suffix never matches itself.
    """

    def __init__(self, longest: int):
        self.longest = longest
        self.text = []
        self.ends: dict[tuple[int, ...], int] = {}
        # at i: the previous end of the SHORT tokens that end at i; 0: none
        self.before: list[int] = []

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            end = len(self.text)
            last = 0
            for n in range(1, min(self.longest, SHORT, end) + 1):
                gram = tuple(self.text[end - n : end])
                if n == SHORT:
                    last = self.ends.get(gram, 0)
                self.ends[gram] = end
            self.before.append(last)
            self.text.append(token)

    def continuation(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the latest earlier occurrence of the longest suffix
        that has one.
        """
        for n in range(min(self.longest, SHORT, len(self.text)), 0, -1):
            end = self.ends.get(tuple(self.text[len(self.text) - n :]))
            if end is not None:
                end = self._longest(end) if n == SHORT < self.longest else end
                return self.text[end : end + count]
        return []

    def _longest(self, match: int) -> int:
        """The end of the longest match among the TRIES latest ends of the last SHORT tokens,
        from `match` back.
        """
        text = self.text
        end = len(self.text)
        best = match
        length = SHORT - 1
        for _ in range(TRIES):
            # 0: not longer
            n = (
                SHORT
                if match > length and text[match - length - 1] == text[end - length - 1]
                else 0
            )
            while 0 < n < min(self.longest, match) and text[match - n - 1] == text[end - n - 1]:
                n += 1
            if n > length:
                best = match
                length = n
            match = self.before[match]
            if match == 0 or length == self.longest:
                break
        return best


class Lookup(Drafter):
    """Drafts the `count` tokens that followed the latest earlier occurrence of the longest suffix
    (up to n tokens).
    """

    name = "n-grams"

    def __init__(self, n: int = 3, count: int = 10):
        self.n = n
        self.count = count
        self.max_depth = count

    def start(self, seqs: Sequences) -> None:
        self.rows = [_Index(self.n) for _ in range(len(seqs.length))]
        self.ready(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.rows.append(_Index(self.n))
        self.ready(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.rows = without(self.rows, row)

    def ready(self, seqs: Sequences) -> None:
        for b, row in enumerate(self.rows):
            row.extend(seqs.tokens[b, len(row.text) : int(seqs.length[b])].tolist())

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.ready(seqs)

    def best(self, b: int, count: int) -> list[int]:
        """The continuation of row b that a draft copies: at most `count` tokens."""
        return self.rows[b].continuation(count)

    def price(self) -> CopyPrice:
        return CopyPrice(max_depth=self.max_depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        count = min(self.count, limits.depth) if limits.width else 0
        paths = [self.best(b, count) for b in range(len(self.rows))]
        if not any(paths):
            return tree
        return tree.add_below_root([list(enumerate(path)) for path in paths])
