"""The tree of one row: a drafted tree, filled best first with continuations of the text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from longdraft.core import DraftLimits
from longdraft.drafters.fill.calibration import Calibration, Guess
from longdraft.drafters.fill.continuations import Continuations, Match


class Vote(NamedTuple):
    """A source's guess about a node that it has proposed."""

    source: Calibration
    guess: Guess

    @property
    def chance(self) -> float:
        return self.source.chance(self.guess)


class FilledNode(NamedTuple):
    """reach: the expected chance that the node and all above it are accepted. votes: one of each
    source that has proposed the node below its parent.
    """

    parent: int
    token: int
    reach: float
    votes: tuple[Vote, ...]


class _Offer(NamedTuple):
    """A node that may be added; sorts by reach, and then by the order in which it was found."""

    loss: float
    order: int
    node: FilledNode
    match: Match
    depth: int


@dataclass
class Growth:
    """nodes[0] is the root, then come the drafted nodes in their own order, then what fills them,
    likeliest first; siblings have different tokens, except among drafted ones.

    limits: of the added nodes; a level has at most `width` of them and of drafted ones.
    """

    text: Continuations
    row: int
    limits: DraftLimits
    copying: Calibration
    drafting: Calibration
    nodes: list[FilledNode] = field(default_factory=list)
    _heap: list[_Offer] = field(default_factory=list)
    _orders: count[int] = field(default_factory=count)

    def fill(
        self,
        drafted: Sequence[tuple[int, int]],
        guesses: Sequence[Guess],
        most: int,
        least: float,
    ) -> list[FilledNode]:
        """The nodes: all that were drafted, and at most `most` others whose reach is at least
        `least`.

        drafted: pairs (parent, token); a negative parent is padding. guesses: the drafter's guess
        about each of them.
        """
        below = defaultdict[int, list[int]](list)
        for i, (parent, _) in enumerate(drafted, 1):
            below[parent].append(i)
        self.nodes = [FilledNode(-1, -1, 1.0, ())]
        self.nodes += [FilledNode(parent, token, 0.0, ()) for parent, token in drafted]
        matches: dict[int, Match] = {0: self.text.at_root(self.row)}
        depths = {0: 0}
        for i in range(len(self.nodes)):
            if i not in matches:
                continue
            own = {c: guesses[c - 1] for c in below[i]}
            for child in self._visit(i, own, matches[i], depths[i], least):
                matches[child] = self.text.after(self.row, matches[i], self.nodes[child].token)
                depths[child] = depths[i] + 1
        levels = Counter(depths.values())
        while self._heap and len(self.nodes) <= len(drafted) + most:
            offer = heappop(self._heap)
            if levels[offer.depth] >= self.limits.width:
                continue
            levels[offer.depth] += 1
            self.nodes.append(offer.node)
            self._visit(len(self.nodes) - 1, {}, offer.match, offer.depth, least)
        return self.nodes

    def _visit(
        self, i: int, drafted: dict[int, Guess], match: Match, depth: int, least: float
    ) -> list[int]:
        """Value the drafted children of node i, and offer others -> the drafted children with
        different tokens.
        """
        votes: dict[int, list[Vote]] = {}
        first: dict[int, int] = {}
        for child, guess in drafted.items():
            token = self.nodes[child].token
            if token not in first:
                first[token] = child
                votes[token] = [Vote(self.drafting, guess)]
        matches: dict[int, Match] = {}
        if depth < self.limits.depth:
            for token, guess, reached in self.text.proposals(self.row, match):
                votes.setdefault(token, []).append(Vote(self.copying, guess))
                matches[token] = reached
        chances = {token: max(vote.chance for vote in mine) for token, mine in votes.items()}
        # one token follows a node, so the chances of all add up to 1 at most
        share = self.nodes[i].reach / max(sum(chances.values()), 1.0)
        for token, mine in votes.items():
            node = FilledNode(i, token, share * chances[token], tuple(mine))
            if token in first:
                self.nodes[first[token]] = node
            elif node.reach >= least:
                offer = _Offer(-node.reach, next(self._orders), node, matches[token], depth + 1)
                heappush(self._heap, offer)
        return list(first.values())


@dataclass(frozen=True)
class Prefix:
    """The first `count` nodes of every row, with the expected tokens of a step that verifies
    them, and those per plain step.
    """

    count: int
    tokens: float
    rate: float


def best_prefix(
    reaches: Sequence[Sequence[float]],
    tokens: float,
    cost: Callable[[int], float],
    dearest: float,
) -> Prefix:
    """The number of nodes with the most expected tokens per plain step.

    reaches: by row, of the nodes in their order. tokens: of a step without these nodes. cost(n): of
    a step with n of them in each row, in plain steps, at most `dearest` where there are any.
    """
    best = Prefix(0, tokens, tokens / cost(0))
    for n in range(1, max(map(len, reaches), default=0) + 1):
        tokens += sum(row[n - 1] for row in reaches if len(row) >= n) / len(reaches)
        spent = cost(n)
        if spent > dearest:
            break
        if tokens > best.rate * spent:
            best = Prefix(n, tokens, tokens / spent)
    return best
