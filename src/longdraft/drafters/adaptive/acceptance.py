"""What was accepted of a drafter's tokens so far, and what to expect of its next draft."""

from __future__ import annotations

from longdraft.core import UNBOUNDED, Tree, Verdict

# FADE, WEIGHT and FIRM are set by benchmarks/adaptive_simulation.py (docs/log).
FADE = 0.98  # weight of a draft's outcome one draft later
WEIGHT = 3.0  # drafted tokens that what is usual counts as
FIRM = 4.0  # drafted tokens of one depth that the mean over all depths counts as
ALIKE = (
    0.5  # the share refused of w choices falls like w ** -ALIKE: from 0.5 of one to 0.25 of four
)
WIDTHS = (1, 2, 4, 8, UNBOUNDED)  # nodes per level, at most


class Acceptance:
    """Of each width and depth, how often a node was accepted whose parent was; counts fade, and
    begin as `usual` says.

    A wider tree also shows it for narrower ones, whose nodes are the first of a level. Drafters
    that do not always find something to draft have `found` and `asked`; how deep and how full their
    drafts are is counted apart, because what was not drafted was not refused. usual: the acceptance
    of a drafted token before any was seen. finds: the share of steps in which such a drafter
    usually finds something.
    """

    def __init__(self, usual: float = 0.7, finds: float = 1.0) -> None:
        self.usual = usual
        self.finds = finds
        self.accepted: dict[int, list[float]] = {w: [] for w in WIDTHS}  # by width and level
        # nodes' levels whose parent was accepted
        self.tried: dict[int, list[float]] = {w: [] for w in WIDTHS}
        self.found = 0.0
        self.asked = 0.0
        # by level: drafts that found something and were asked for this depth
        self.searched: list[float] = []
        self.present: list[float] = []  # of these, those that were as deep
        # sums of the share of the level's allowed nodes that these drafted
        self.filled: list[float] = []

    def add(
        self, asked: int, width: int, nodes: list[float], ranks: list[list[int]], kept: float = 1.0
    ) -> None:
        """Record one draft.

        asked: the depth that it was limited to. nodes: of each level drafted, the share of its
        allowed nodes. ranks: by row, see `ranks`. kept: the share of acceptance that the age of its
        view has left (1: a new view).
        """
        self.fade(FADE)
        self.asked += 1
        if not nodes:
            return
        self.found += 1
        _extend(asked, self.searched, self.present, self.filled)
        for level in range(asked):
            self.searched[level] += 1
        for level, share in enumerate(nodes[:asked]):
            self.present[level] += 1
            self.filled[level] += share
        for w in WIDTHS[: WIDTHS.index(width) + 1]:
            accepted = self.accepted[w]
            tried = self.tried[w]
            _extend(len(nodes), accepted, tried)
            for row in ranks:
                good = next((i for i, rank in enumerate(row) if rank >= w), len(row))
                for level in range(min(good + 1, len(nodes))):
                    tried[level] += 1
                    accepted[level] += 1 / kept if good > level else 0.0

    def fade(self, share: float) -> None:
        """Let what was seen so far count this much less."""
        self.found, self.asked = self.found * share, self.asked * share
        for levels in (
            self.searched,
            self.present,
            self.filled,
            *self.accepted.values(),
            *self.tried.values(),
        ):
            levels[:] = [n * share for n in levels]

    @property
    def share_found(self) -> float:
        """The expected share of steps in which something is found to draft."""
        return (self.found + WEIGHT * self.finds) / (self.asked + WEIGHT)

    def means(self, widths: list[int]) -> list[float]:
        """The acceptance of a token in trees of these widths, ascending: each builds on the
        narrower one's.
        """
        means = []
        below = self.usual
        before = 1
        for w in widths:
            of = next(x for x in WIDTHS if x >= w or x == UNBOUNDED)
            prior = 1 - (1 - below) * (before / w) ** ALIKE
            below = (sum(self.accepted[of]) + WEIGHT * prior) / (sum(self.tried[of]) + WEIGHT)
            before = w
            means.append(min(below, 1.0))
        return means

    def expected(
        self, width: int, mean: float, levels: list[float], kept: float = 1.0
    ) -> list[tuple[float, float]]:
        """Of each draft depth 0..len(levels): tokens of a step, the bonus token included, and nodes
        if one is found.

        mean: see `means`. levels: the nodes that each level may have. kept: as in `add`.
        """
        accepted = self.accepted[width]
        tried = self.tried[width]
        known = len(tried)
        seen = len(self.searched)
        tokens = 1.0
        nodes = 0.0
        reached = self.share_found
        found = [(tokens, nodes)]
        for level, allowed in enumerate(levels):
            a, t = (accepted[level], tried[level]) if level < known else (0.0, 0.0)
            chance = kept * (a + FIRM * mean) / (t + FIRM)
            reached *= chance if chance < 1 else 1.0
            deep = 1.0
            filled = 1.0
            if level < seen:
                deep = (self.present[level] + 1) / (self.searched[level] + 1)
                filled = (self.filled[level] + 1) / (self.present[level] + 1)
            tokens += deep * reached
            nodes += deep * filled * allowed
            found.append((tokens, nodes))
        return found


def _extend(levels: int, *lists: list[float]) -> None:
    for counts in lists:
        counts += [0.0] * (levels - len(counts))


def ranks(tree: Tree, verdict: Verdict) -> list[list[int]]:
    """By row, for every accepted draft, how many nodes of its level precede it in the tree."""
    counts = verdict.count.tolist()
    if tree.size == int(tree.depth.max()) + 1:
        return [[0] * (n - 1) for n in counts]
    by_row = []
    rows = (tree.depth.tolist(), tree.parent.tolist(), verdict.path.tolist(), counts)
    for depth, parent, path, n in zip(*rows, strict=True):
        place = [0] * len(depth)
        seen = [0] * len(depth)
        for i in range(1, len(depth)):
            if parent[i] >= 0:
                place[i] = seen[depth[i]]
                seen[depth[i]] += 1
        by_row.append([place[i] for i in path[1:n]])
    return by_row


def filled(tree: Tree, depth: int, levels: list[float]) -> list[float]:
    """Of each level of a tree of this depth, the share of its allowed nodes; levels: how many those
    are.
    """
    if tree.size == depth + 1:
        return [1 / levels[d] if d < len(levels) else 1.0 for d in range(depth)]
    counts = [0] * (depth + 1)
    for row in zip(*tree.depth.tolist(), strict=True):
        counts[max(row)] += 1
    return [min(n / levels[d], 1.0) if d < len(levels) else 1.0 for d, n in enumerate(counts[1:])]
