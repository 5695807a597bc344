"""SuffixDecoding: drafts copied from earlier text, weighted by how often each continuation
occurred.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil

from longdraft.core import Captures, DraftLimits, Sequences, Tree, Verdict, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.price import SuffixPrice
from longdraft.drafters.ngram.recent_text import NO_MATCH, Match, RecentText

# last tokens of a sequence that are matched again when the memory of earlier outputs has grown
REMATCHED_TOKENS = 256


Offer = tuple[float, int, int, int, Match]  # -probability, level, parent, token, match


def likely(
    text: RecentText, match: Match, nodes: int, depth: int, min_probability: float
) -> list[tuple[int, int]]:
    """The `nodes` likeliest continuations of a match as a tree: pairs (parent, token), parent 0 for
    its end.

    A continuation's probability is the product of relative counts along its path, at least
    min_probability.
    """
    drafted: list[tuple[int, int]] = []
    heap: list[Offer] = []

    def offer(match: Match, parent: int, probability: float, level: int) -> None:
        found = text.followers(match)
        share = probability / max(sum(len(longer.ends) for _, longer in found), 1)
        for token, longer in found:
            if share * len(longer.ends) < min_probability:
                break
            heappush(heap, (-share * len(longer.ends), level, parent, token, longer))

    offer(match, 0, 1.0, 1)
    while heap and len(drafted) < nodes:
        loss, level, parent, token, longer = heappop(heap)
        drafted.append((parent, token))
        if level < depth:
            offer(longer, len(drafted), -loss, level + 1)
    return drafted


class SuffixRow(RecentText):
    """A row's latest tokens, its output, and its longest suffix that earlier outputs have."""

    def __init__(self, most: int):
        super().__init__(most)
        self.output: list[int] = []
        self.matched = NO_MATCH

    def match(self, memory: RecentText, tokens: list[int]) -> None:
        for token in tokens:
            self.matched = memory.follow(self.matched, token)


class Suffix(Drafter):
    """Drafts a tree of what followed the longest suffix that occurred before, in this sequence or
    in earlier outputs.

    nodes: most nodes of a tree; a match of m tokens allows `factor` * m (SuffixDecoding sec. 3.2).
    min_probability: the least probability of a node. most: latest tokens of the sequence that are
    indexed. earlier: tokens of earlier outputs that are kept (0: none, so that drafts depend on the
    sequence alone).
    """

    name = "n-grams"

    def __init__(
        self,
        nodes: int = 16,
        factor: float = 2.0,
        min_probability: float = 0.1,
        most: int = 1 << 16,
        earlier: int = 0,
    ):
        self.nodes = nodes
        self.factor = factor
        self.min_probability = min_probability
        self.most = most
        self.max_depth = nodes
        self.memory = RecentText(earlier) if earlier else None
        self.rows: list[SuffixRow] = []

    def start(self, seqs: Sequences) -> None:
        for row in self.rows:
            self._remember(row.output)
        self.rows = [SuffixRow(self.most) for _ in range(len(seqs.length))]

    def _remember(self, output: list[int]) -> None:
        if self.memory is not None:
            # a separator that occurs only once
            self.memory.extend([*output, -1 - self.memory.seen])

    def enter(self, seqs: Sequences, row: int) -> None:
        self.rows.append(SuffixRow(self.most))

    def leave(self, seqs: Sequences, row: int) -> None:
        """The row's output joins the earlier outputs, also for the rows that remain."""
        output = self.rows[row].output
        self.rows = without(self.rows, row)
        if self.memory is not None and output:
            self._remember(output)
            for kept in self.rows:
                kept.matched = NO_MATCH
                kept.match(self.memory, kept.tokens[-REMATCHED_TOKENS:])

    def ready(self, seqs: Sequences) -> None:
        for b, (row, length) in enumerate(zip(self.rows, seqs.length.tolist(), strict=True)):
            if row.seen == length:
                continue
            new = seqs.tokens[b, row.seen : length].tolist()
            if self.memory is not None:
                row.output += new[max(int(seqs.prompt[b]) - row.seen, 0) :]
                row.match(self.memory, new)
            row.extend(new)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self.memory is not None:  # so that outputs are complete, whether or not drafts were made
            self.ready(seqs)

    def price(self) -> SuffixPrice:
        return SuffixPrice(max_depth=self.max_depth, most=self.nodes)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self.ready(seqs)
        rows = [
            [] if done else self._draft(b, limits.depth)
            for b, done in enumerate(seqs.done.tolist())
        ]
        return tree.add_below_root(rows, limits.width)

    def best(self, b: int, count: int) -> list[int]:
        """The likeliest continuation of row b, token by token: at most `count` tokens, as many as
        its tree is deep.
        """
        path = []
        node = 0
        for i, (parent, token) in enumerate(self._draft(b, count), 1):
            if parent == node:
                path.append(token)
                node = i
        return path

    def _draft(self, b: int, room: int) -> list[tuple[int, int]]:
        text: RecentText = self.rows[b]
        match = text.repeated()
        earlier = self.rows[b].matched
        if self.memory is not None and earlier.length > match.length:
            text = self.memory
            match = earlier
        nodes = ceil(min(self.nodes, self.factor * match.length))
        drafts = likely(text, match, nodes, room, self.min_probability) if nodes and room else []
        return _without_separators(drafts)


def _without_separators(drafts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the separators between earlier outputs and what was drafted after them."""
    place = {0: 0}
    kept = []
    for i, (parent, token) in enumerate(drafts, 1):
        if token >= 0 and parent in place:
            kept.append((place[parent], token))
            place[i] = len(kept)
    return kept
