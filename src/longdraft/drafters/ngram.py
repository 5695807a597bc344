"""Drafts copied from the text itself."""

from __future__ import annotations

import torch

from longdraft.drafters.base import Drafter
from longdraft.model import Taps
from longdraft.sequences import Sequences, without
from longdraft.tree import Tree
from longdraft.verify import Verdict


class _Index:
    """Where each n-gram of a growing text last ended, for n in 1..longest; one entry per distinct n-gram.

    An n-gram enters once a token follows it, so the text's own suffix never finds itself.
    """

    def __init__(self, longest: int):
        self.longest, self.text = longest, []
        self.ends: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        for token in tokens:
            at = len(self.text)
            for n in range(1, min(self.longest, at) + 1):
                self.ends[tuple(self.text[at - n : at])] = at
            self.text.append(token)

    def continuation(self, count: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest suffix that has one."""
        for n in range(min(self.longest, len(self.text)), 0, -1):
            at = self.ends.get(tuple(self.text[len(self.text) - n :]))
            if at is not None:
                return self.text[at : at + count]
        return []


class Lookup(Drafter):
    """Prompt lookup: the longest suffix (up to n tokens) that occurred before, and the `count` tokens after it."""

    def __init__(self, n: int = 3, count: int = 10):
        self.n, self.count = n, count

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

    def observe(self, seqs: Sequences, tree: Tree, verdict: Verdict, taps: Taps) -> None:
        self._catch_up(seqs)

    def grow(self, tree: Tree, seqs: Sequences) -> Tree:
        count = min(self.count, seqs.room) if seqs.wide else 0
        paths = [row.continuation(count) for row in self.rows]
        most = max(map(len, paths))
        if most == 0:
            return tree
        table = torch.tensor([p + [-1] * (most - len(p)) for p in paths], device=tree.tokens.device)
        return tree.graft(torch.zeros_like(table[:, :1]), table[:, None])
