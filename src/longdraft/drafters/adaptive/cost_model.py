"""What rounds of each depth and width have cost and brought so far, and which promises the most."""

from __future__ import annotations

from collections import deque

from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict

FADE = 0.97  # what a round's acceptance still counts one round later
HOPE = 0.7  # of a draft nobody has seen refused yet
RECENT = 7  # rounds of a shape whose middle one says what it costs
ANY = 1 << 30  # as wide as the drafter likes
WIDTHS = (1, 2, 4, 8, ANY)  # nodes at one depth, at most


class CostModel:
    """Tokens that a round of each depth and width is expected to bring, and its cost, from the latest rounds alone.

    Costs are seconds, or shares of a plain step (costs.py); the names below say seconds for both.

    What a narrower tree would have brought is seen in a wider one: the accepted nodes that are among the first of their
    depth. A depth never drafted is judged by those that were: its acceptance by the mean over depths, its cost along
    the line through the two deepest known of its width. A width never drafted is not judged.
    """

    def __init__(self) -> None:
        # by width and depth: drafts accepted, and those whose parent was
        self.good: dict[int, list[float]] = {w: [] for w in WIDTHS}
        self.tries: dict[int, list[float]] = {w: [] for w in WIDTHS}
        self.plain: deque[float] = deque(maxlen=RECENT)
        self.spent: dict[int, dict[int, deque[float]]] = {}
        self.widest = 1  # nodes that a depth had

    def note(self, depth: int, asked: int, width: int, ranks: list[list[int]], seconds: float) -> None:
        """One round: the tree's depth, depth and width asked for, its time, and by row the accepted nodes' ranks."""
        shape = self.spent.setdefault(width, {}).setdefault(depth, deque(maxlen=RECENT)) if depth else self.plain
        shape.append(seconds)
        for w in WIDTHS[: WIDTHS.index(width) + 1]:
            accepted = [next((i for i, rank in enumerate(row) if rank >= w), len(row)) for row in ranks]
            self._accept(self.good[w], self.tries[w], asked, accepted)

    def _accept(self, good: list[float], tries: list[float], asked: int, accepted: list[int]) -> None:
        while len(good) < asked:
            good.append(0.0)
            tries.append(0.0)
        for i in range(asked):
            reached, taken = (sum(a >= n for a in accepted) for n in (i, i + 1))
            if reached:
                good[i] = FADE * good[i] + taken / reached
                tries[i] = FADE * tries[i] + 1

    @property
    def widths(self) -> list[int]:
        """Those that differ for this drafter's trees."""
        return [w for w in WIDTHS if w < self.widest or w == ANY]

    @property
    def deepest(self) -> int:
        return max((depth for shapes in self.spent.values() for depth in shapes), default=0)

    def tokens(self, deepest: int, width: int = ANY) -> list[float]:
        """Expected of a round of each depth 0..deepest, bonus token included."""
        goods, tried = self.good[width], self.tries[width]
        mean = (sum(goods) + 2 * HOPE) / (sum(tried) + 2)
        found, alive = [1.0], 1.0
        for i in range(deepest):
            good, tries = (goods[i], tried[i]) if i < len(goods) else (0.0, 0.0)
            alive *= (good + mean) / (tries + 1)
            found.append(found[-1] + alive)
        return found

    def seconds(self, deepest: int, width: int = ANY) -> list[float]:
        """Of a round of each depth 0..deepest."""
        shapes = {0: self.plain} if self.plain else {}
        known = sorted((d, _middle(times)) for d, times in (shapes | self.spent.get(width, {})).items())
        found, above = [], 0
        for depth in range(deepest + 1):
            while above < len(known) - 1 and known[above][0] < depth:
                above += 1
            (d1, t1), (d0, t0) = known[above], known[max(above - 1, 0)]
            line = t1 if d1 == d0 else t0 + (t1 - t0) * (depth - d0) / (d1 - d0)
            found.append(max(line, known[0][1]))
        return found

    def best(self) -> tuple[float, int, int]:
        """The highest rate, tokens a second, its depth and width: at most twice the deepest tried."""
        deepest, found = 2 * self.deepest, []
        for width in self.widths:
            if width in self.spent or width == ANY:
                pairs = zip(self.tokens(deepest, width), self.seconds(deepest, width), strict=True)
                found += [(tokens / seconds, -depth, width) for depth, (tokens, seconds) in enumerate(pairs)]
        rate, depth, width = max(found)
        return rate, -depth, width


def _middle(times: deque[float]) -> float:
    return sorted(times)[(len(times) - 1) // 2]


def ranks(tree: Tree, verdict: Verdict) -> list[list[int]]:
    """By row, for every accepted draft how many nodes of its depth come before it in the tree."""
    counts = verdict.count.tolist()
    if tree.size == int(tree.depth.max()) + 1:
        return [[0] * (n - 1) for n in counts]
    found = []
    for depth, parent, path, n in zip(
        tree.depth.tolist(), tree.parent.tolist(), verdict.path.tolist(), counts, strict=True
    ):
        place, seen = [0] * len(depth), [0] * len(depth)
        for i in range(1, len(depth)):
            if parent[i] >= 0:
                place[i] = seen[depth[i]]
                seen[depth[i]] += 1
        found.append([place[i] for i in path[1:n]])
    return found
