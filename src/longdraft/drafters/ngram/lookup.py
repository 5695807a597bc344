"""Drafts copied from the text itself."""

from __future__ import annotations

import torch

from longdraft.core.capture import Captures
from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences, without
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters.base import Drafter

SHORT = 4  # n-grams up to here are indexed; a longer match is looked for where the last SHORT tokens occurred
TRIES = 128  # so many of these places are looked at, the latest first


class _Index:
    """Where each n-gram of a growing text last ended, for n in 1..min(longest, SHORT), and where those of SHORT tokens
    ended before: memory in proportion to the text, however long a match may be.

    An n-gram enters once a token follows it, so the text's own suffix never finds itself.
    """

    def __init__(self, longest: int):
        self.longest, self.text = longest, []
        self.ends: dict[tuple[int, ...], int] = {}
        self.before: list[int] = []  # at i: where the SHORT tokens that end at i had ended before; 0: nowhere

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            at, last = len(self.text), 0
            for n in range(1, min(self.longest, SHORT, at) + 1):
                gram = tuple(self.text[at - n : at])
                if n == SHORT:
                    last = self.ends.get(gram, 0)
                self.ends[gram] = at
            self.before.append(last)
            self.text.append(token)

    def continuation(self, count: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest suffix that has one."""
        for n in range(min(self.longest, SHORT, len(self.text)), 0, -1):
            at = self.ends.get(tuple(self.text[len(self.text) - n :]))
            if at is not None:
                at = self._longest(at) if n == SHORT < self.longest else at
                return self.text[at : at + count]
        return []

    def _longest(self, at: int) -> int:
        """Of the TRIES latest places, from `at` back, where the last SHORT tokens end: that of the longest match."""
        text, end, best, length = self.text, len(self.text), at, SHORT - 1
        for _ in range(TRIES):
            n = SHORT if at > length and text[at - length - 1] == text[end - length - 1] else 0  # 0: it is no longer
            while 0 < n < min(self.longest, at) and text[at - n - 1] == text[end - n - 1]:
                n += 1
            if n > length:
                best, length = at, n
            at = self.before[at]
            if at == 0 or length == self.longest:
                break
        return best


class Lookup(Drafter):
    """Prompt lookup: the longest suffix (up to n tokens) that occurred before, and the `count` tokens after it.

    Of suffixes of more than SHORT tokens, the longest among the TRIES latest places.
    """

    def __init__(self, n: int = 3, count: int = 10):
        self.n, self.count, self.max_depth = n, count, count

    def start(self, seqs: Sequences) -> None:
        self.rows = [_Index(self.n) for _ in range(len(seqs.length))]
        self._catch_up(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.rows.append(_Index(self.n))
        self._catch_up(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.rows = without(self.rows, row)

    def _catch_up(self, seqs: Sequences) -> None:
        for b, row in enumerate(self.rows):
            row.extend(seqs.tokens[b, len(row.text) : int(seqs.length[b])].tolist())

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self._catch_up(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        count = min(self.count, limits.depth) if limits.width else 0
        paths = [row.continuation(count) for row in self.rows]
        most = max(map(len, paths))
        if most == 0:
            return tree
        table = torch.tensor([p + [-1] * (most - len(p)) for p in paths], device=tree.tokens.device)
        return tree.add_paths(torch.zeros_like(table[:, :1]), table[:, None])
