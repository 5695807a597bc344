"""TokenSwift's token reutilization: frequent continuations of a drafted token become branches below
it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import nlargest
from math import log

import torch

from longdraft.core import PAD, DraftLimits, Sequences, Tree, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.price import ReusePrice
from longdraft.errors import InputError
from longdraft.ops import DRAFT, gumbel

Gram = tuple[int, ...]
TOKENS = 1 << 22  # most tokens in all n-grams of one sequence: 32 MB of memory


class NGrams:
    """Count and latest end of the n-grams of a growing sequence: the `capacity` most recently seen
    ones.
    """

    def __init__(self, n: int, capacity: int):
        self.n = n
        self.capacity = capacity
        # tokens seen, and the last n of them
        self.size = 0
        self.tail = deque[int](maxlen=n)
        # n-gram: count, end; least recently seen first
        self.seen: OrderedDict[Gram, tuple[int, int]] = OrderedDict()
        self.after: dict[int, set[Gram]] = {}  # n-grams by their first token

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.size += 1
            self.tail.append(token)
            if self.size >= self.n:
                self._add(tuple(self.tail))

    def _add(self, gram: Gram) -> None:
        count, _ = self.seen.pop(gram, (0, 0))
        self.seen[gram] = count + 1, self.size
        self.after.setdefault(gram[0], set()).add(gram)
        if len(self.seen) > self.capacity:
            old, _ = self.seen.popitem(last=False)
            grams = self.after[old[0]]
            grams.remove(old)
            if not grams:
                del self.after[old[0]]

    def best(self, key: int, k: int, seed: int | None = None) -> list[Gram]:
        """The k most frequent continuations of a token, best first, ties broken by recency.

        With a seed: k draws without replacement, by frequency, determined by the seed and the
        sequence's length.
        """
        known = self.after.get(key, ())
        if seed is None:
            # ends differ, so there are no ties
            chosen = nlargest(k, known, key=lambda g: self.seen[g])
        else:
            grams = sorted(known, key=lambda g: self.seen[g][1])  # a set has no fixed order
            noise = (
                gumbel(torch.tensor([seed ^ DRAFT]), torch.tensor([[self.size]]), len(grams))
                .view(-1)
                .tolist()
            )
            ranked = nlargest(
                k,
                zip(grams, noise, strict=True),
                key=lambda pair: log(self.seen[pair[0]][0]) + pair[1],
            )
            chosen = [gram for gram, _ in ranked]
        return [gram[1:] for gram in chosen]


def add_branches(tree: Tree, rows: list[list[tuple[int, Gram]]]) -> Tree:
    """Add paths to a tree without repeating nodes that it has. rows: by row, pairs (node, tokens
    below it).
    """
    children = [
        {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))
            if parent >= 0
        }
        for parents, tokens in zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True)
    ]
    for depth in range(max((len(path) for row in rows for _, path in row), default=0)):
        new: list[list[tuple[int, int]]] = []
        for b, row in enumerate(rows):
            level: list[tuple[int, int]] = []
            for i, (node, path) in enumerate(row):
                if depth >= len(path):
                    continue
                edge = (node, path[depth])
                if edge not in children[b]:
                    children[b][edge] = tree.size + len(level)
                    level.append(edge)
                row[i] = (children[b][edge], path)
            new.append(level)
        most = max(map(len, new))
        if most:
            padded = [level + [(PAD, 0)] * (most - len(level)) for level in new]
            parent, tokens = torch.tensor(padded, device=tree.tokens.device).unbind(-1)
            tree = tree.grow(parent, tokens)
    return tree


class Reuse(Drafter):
    """Below each node at depth `below`, adds the sequence's `topk` most frequent n-grams that begin
    with its token.

    With a repetition penalty, n-grams that end inside its window are not counted yet, because the
    penalty makes the target avoid them (TokenSwift sec. 3.3). choice="random" draws n-grams by
    frequency; the drafts then depend on the seed, the output does not. Raises InputError.
    """

    name = "n-grams"

    def __init__(
        self,
        n: int = 4,
        topk: int = 20,
        below: int = 1,
        choice: str = "count",
        capacity: int = 1 << 17,
    ):
        if n < 2:
            raise InputError(
                f"option n is {n}: give 2 or more, the length of a token with its continuation"
            )
        self.n = n
        self.topk = topk
        self.below = below
        self.choice = choice
        self.max_depth = below + n - 1
        self.capacity = min(capacity, TOKENS // n)

    def start(self, seqs: Sequences) -> None:
        self.rows = [NGrams(self.n, self.capacity) for _ in range(len(seqs.length))]

    def enter(self, seqs: Sequences, row: int) -> None:
        self.rows.append(NGrams(self.n, self.capacity))

    def leave(self, seqs: Sequences, row: int) -> None:
        self.rows = without(self.rows, row)

    def ready(self, seqs: Sequences) -> None:
        lag = seqs.sampler.lag
        for b, row in enumerate(self.rows):
            row.extend(seqs.tokens[b, row.size : max(int(seqs.length[b]) - lag, 0)].tolist())

    def price(self) -> ReusePrice:
        return ReusePrice(
            max_depth=self.max_depth, below=self.below, topk=self.topk, length=self.n - 1
        )

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        deep = min(self.n - 1, limits.depth - self.below)
        if deep < 1:
            return tree
        self.ready(seqs)
        seeds = seqs.seed.tolist() if self.choice == "random" else [None] * len(self.rows)
        by_row: list[list[tuple[int, Gram]]] = []
        for b, row in enumerate(self.rows):
            parents = (
                ((tree.depth[b] == self.below) & (tree.parent[b] > PAD)).nonzero()[:, 0].tolist()
            )
            branches = [
                (node, row.best(int(tree.tokens[b, node]), self.topk, seeds[b])) for node in parents
            ]
            by_row.append(
                [(node, path[:deep]) for node, paths in branches for path in paths][: limits.width]
            )
        return add_branches(tree, by_row)
