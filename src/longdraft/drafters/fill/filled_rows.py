"""The trees of all rows of a step, and what verification showed of their nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from longdraft.core import Tree, Verdict
from longdraft.drafters.fill.calibration import Guess
from longdraft.drafters.fill.growth import FilledNode

DEEPEST = 8  # levels of a draft whose acceptance is counted apart
WIDEST = 4  # children of one node whose acceptance is counted apart


@dataclass(frozen=True)
class FilledRows:
    """nodes: by row, those of its tree, the root first. live: whether each row is running; only
    running rows count.
    """

    nodes: list[list[FilledNode]]
    live: list[bool]

    def reaches(self, first: int) -> list[list[float]]:
        """By row, the reach of the nodes from `first` on."""
        return [[node.reach for node in row[first:]] for row in self._running]

    def tokens(self, end: int) -> float:
        """The expected tokens of a step that verifies the nodes before `end`."""
        return 1.0 + self.mean(sum(node.reach for node in row[1:end]) for row in self.nodes)

    def levels(self, count: int) -> dict[int, float]:
        """{depth: the mean chance that one of the first `count` nodes at this depth is accepted};
        for rows that were not drafted before.
        """
        reached = dict[int, float]()
        for row in self._running:
            depths = [0]
            for node in row[1 : 1 + count]:
                depths.append(depths[node.parent] + 1)
                reached[depths[-1]] = reached.get(depths[-1], 0.0) + node.reach / sum(self.live)
        return reached

    def mean(self, values: Iterable[float]) -> float:
        """The mean of one value of each row; 0 if no row is running."""
        running = [value for value, on in zip(values, self.live, strict=True) if on]
        return sum(running) / max(len(running), 1)

    @property
    def _running(self) -> list[list[FilledNode]]:
        return [row for row, on in zip(self.nodes, self.live, strict=True) if on]

    def within(self, size: int) -> FilledRows:
        """The first `size` nodes of each row, the root included."""
        return replace(self, nodes=[row[:size] for row in self.nodes])

    def plant(self, tree: Tree) -> Tree:
        """The root of this tree with the rows' nodes below it."""
        return tree.plant([[(node.parent, node.token) for node in row[1:]] for row in self.nodes])

    def observe(self, tree: Tree, paths: list[list[int]]) -> None:
        """Tell the sources what became of the nodes that they have proposed.

        tree: as it was verified, where nodes may have become padding. paths: by row, the accepted
        nodes, the root included. The target chose one token after each of them, so each of their
        children is either accepted or refused; nothing is known of other nodes.
        """
        rows = zip(self.nodes, self.live, tree.parent.tolist(), paths, strict=True)
        for nodes, on, parents, path in rows:
            for i, node in enumerate(nodes if on else []):
                if i and parents[i] >= 0 and node.parent in path:
                    for vote in node.votes:
                        vote.source.add(vote.guess, i in path)


def guesses_of(tree: Tree, usual: float) -> list[list[Guess]]:
    """By row, a drafter's guesses about the nodes of its tree: of one node's children the first is
    the likeliest.

    usual: the usual acceptance of a drafted token.
    """
    rows: list[list[Guess]] = []
    for parents, depths in zip(tree.parent.tolist(), tree.depth.tolist(), strict=True):
        before = dict[int, int]()
        guesses: list[Guess] = []
        for parent, depth in zip(parents[1:], depths[1:], strict=True):
            rank = min(before.get(parent, 0), WIDEST)
            before[parent] = before.get(parent, 0) + 1
            prior = usual if rank == 0 else (1 - usual) * 0.5**rank
            guesses.append(Guess((min(depth, DEEPEST), rank), prior))
        rows.append(guesses)
    return rows


def cut(verdict: Verdict, size: int) -> Verdict:
    """The verdict on the first `size` nodes: a path ends where it leaves them."""
    own = (verdict.path < size).cumprod(1).sum(1)
    return replace(verdict, count=own.minimum(verdict.count))
