"""Which draft depth and width promises the most tokens per unit of cost, judged by the latest steps."""

from __future__ import annotations

from collections import deque

from longdraft.core import UNBOUNDED, Tree, Verdict

# FADE, PRIOR, WEIGHT and RECENT were chosen by hand; only the simulation in docs/log.md ran with them, none was varied.
FADE = 0.97  # weight of a step's acceptance one draft later
PRIOR, WEIGHT = 0.7, 2  # acceptance assumed of a draft before any was seen, and the number of drafts it counts as
RECENT = 7  # steps of one shape whose median is its cost
WIDTHS = (1, 2, 4, 8, UNBOUNDED)  # nodes per level, at most


class CostModel:
    """Expected tokens and cost of a decoding step for each draft depth and width, from past steps alone.

    Cost: for each width, fixed + level * depth, fitted to the depths tried; other widths lie between those tried.
    Acceptance: per level and width; a wider tree also shows it for narrower ones, whose nodes are the first of a level.
    """

    def __init__(self, max_depth: int = UNBOUNDED) -> None:
        self.max_depth = max_depth
        self.plain: deque[float] = deque(maxlen=RECENT)  # costs of steps without a draft
        self.costs: dict[int, dict[int, deque[float]]] = {}  # of drafting steps, by width and depth
        self.accepted: dict[int, list[float]] = {w: [] for w in WIDTHS}  # by width and level
        self.tried: dict[int, list[float]] = {w: [] for w in WIDTHS}  # drafts whose parent was accepted
        self.widest = 1  # most nodes that any level had

    def add(self, depth: int, width: int, ranks: list[list[int]], cost: float) -> None:
        """Record one draft: its depth, the width it was limited to, and each row's accepted nodes (see `ranks`)."""
        self.costs.setdefault(width, {}).setdefault(depth, deque(maxlen=RECENT)).append(cost)
        for w in WIDTHS[: WIDTHS.index(width) + 1]:
            accepted, tried = self.accepted[w], self.tried[w]
            counts = [next((i for i, rank in enumerate(row) if rank >= w), len(row)) for row in ranks]
            accepted += [0.0] * (depth - len(accepted))
            tried += [0.0] * (depth - len(tried))
            for level in range(depth):
                reached, taken = (sum(n >= least for n in counts) for least in (level, level + 1))
                if reached:
                    accepted[level] = FADE * accepted[level] + taken / reached
                    tried[level] = FADE * tried[level] + 1

    def learn(self, other: CostModel) -> None:
        """Take over which drafts were accepted, which does not depend on what a step costs."""
        self.accepted, self.tried = ({w: list(n) for w, n in x.items()} for x in (other.accepted, other.tried))
        self.widest = other.widest

    def halve(self) -> None:
        """Let acceptance seen so far count half as much: it may be out of date."""
        for levels in (*self.accepted.values(), *self.tried.values()):
            levels[:] = [n / 2 for n in levels]

    @property
    def widths(self) -> list[int]:
        """The width limits that make a difference to this drafter's trees."""
        return [w for w in WIDTHS if w < self.widest or w == UNBOUNDED]

    def tokens(self, deepest: int, width: int = UNBOUNDED) -> list[float]:
        """Expected tokens of a step, bonus token included, for each draft depth 0..deepest."""
        accepted, tried = self.accepted[width], self.tried[width]
        mean = (sum(accepted) + WEIGHT * PRIOR) / (sum(tried) + WEIGHT)
        expected, reached = [1.0], 1.0
        for level in range(deepest):
            a, t = (accepted[level], tried[level]) if level < len(tried) else (0.0, 0.0)
            reached *= (a + mean) / (t + 1)
            expected.append(expected[-1] + reached)
        return expected

    def line(self, width: int = UNBOUNDED) -> tuple[float, float]:
        """Fixed cost of a drafting step and cost per level: a least-squares fit to the median costs of depths tried.

        Where one depth alone was tried, all that it cost beyond a plain step is attributed to its levels.
        """
        if width not in self.costs:
            low = max((w for w in self.costs if w < width), default=min(self.costs))
            high = min((w for w in self.costs if w > width), default=max(self.costs))
            (a, b), (c, d) = self.line(low), self.line(high)
            low, width, high = (min(w, self.widest) for w in (low, width, high))
            share = (width - low) / max(high - low, 1)
            return a + share * (c - a), b + share * (d - b)
        points = [(depth, median(costs), len(costs)) for depth, costs in self.costs[width].items()]
        count = sum(n for _, _, n in points)
        depth, cost = sum(d * n for d, _, n in points) / count, sum(c * n for _, c, n in points) / count
        steepest = max(cost - median(self.plain), 0) / depth
        spread = sum(n * (d - depth) ** 2 for d, _, n in points)
        slope = sum(n * (d - depth) * (c - cost) for d, c, n in points) / spread if spread else steepest
        level = min(max(slope, 0.0), steepest)
        return cost - level * depth, level

    def could_pay(self, depth: int, width: int) -> bool:
        """Whether a draft would be faster than plain decoding if all of it were accepted; True if none was as deep."""
        if max(self.costs.get(width, [0])) < depth:
            return True
        fixed, level = self.line(width)
        return fixed + level * depth < (depth + 1) * median(self.plain)

    def best(self) -> tuple[float, int, int]:
        """The highest expected rate (tokens per unit of cost), with its depth and width; (rate, 0, ...) is no draft."""
        if not self.plain:
            return 0.0, 0, UNBOUNDED
        shapes = [(1 / median(self.plain), 0, UNBOUNDED), *self._drafts()]
        return max(shapes, key=lambda shape: (shape[0], -shape[1]))

    def promise(self) -> float:
        """The highest rate that a draft promises, in plain decoding's; 1 if none was tried."""
        return max((rate for rate, *_ in self._drafts()), default=1 / median(self.plain)) * median(self.plain)

    def _drafts(self) -> list[tuple[float, int, int]]:
        """Expected rate, depth and width of every draft, up to twice the greatest depth tried."""
        shapes = []
        deepest = min(2 * max((d for depths in self.costs.values() for d in depths), default=0), self.max_depth)
        for width in self.widths if deepest else []:
            fixed, level = self.line(width)
            tokens = self.tokens(deepest, width)
            shapes += [(tokens[depth] / (fixed + level * depth), depth, width) for depth in range(1, deepest + 1)]
        return shapes


def median(costs: deque[float]) -> float:
    """The lower median."""
    return sorted(costs)[(len(costs) - 1) // 2]


def ranks(tree: Tree, verdict: Verdict) -> list[list[int]]:
    """By row, for every accepted draft, how many nodes of its level precede it in the tree."""
    counts = verdict.count.tolist()
    if tree.size == int(tree.depth.max()) + 1:
        return [[0] * (n - 1) for n in counts]
    by_row, rows = [], (tree.depth.tolist(), tree.parent.tolist(), verdict.path.tolist(), counts)
    for depth, parent, path, n in zip(*rows, strict=True):
        place, seen = [0] * len(depth), [0] * len(depth)
        for i in range(1, len(depth)):
            if parent[i] >= 0:
                place[i] = seen[depth[i]]
                seen[depth[i]] += 1
        by_row.append([place[i] for i in path[1:n]])
    return by_row
