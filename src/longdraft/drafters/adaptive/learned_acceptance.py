"""The acceptance of a drafter's tokens so far, and what to expect of its next draft."""

from __future__ import annotations

from longdraft.core import UNBOUNDED, Tree, Verdict
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants


class LearnedAcceptance:
    """By width and depth, how often a node was accepted whose parent was. Counts fade, and begin
    with the usual acceptance.

    A wider tree also shows it for narrower ones, whose nodes are the first of a level. Drafters
    that do not always find something to draft have `found` and `asked`; how deep and how full their
    drafts are is counted apart, because what was not drafted was not refused. usual: the acceptance
    of a drafted token before any was seen. finds: the share of steps in which such a drafter
    usually finds something.
    """

    def __init__(
        self, usual: float = 0.7, finds: float = 1.0, constants: Constants = DEFAULTS
    ) -> None:
        self.usual = usual
        self.finds = finds
        self.constants = constants
        widths = constants.widths
        self.accepted: dict[int, list[float]] = {w: [] for w in widths}  # by width and level
        # by width and level: nodes whose parent was accepted
        self.tried: dict[int, list[float]] = {w: [] for w in widths}
        self.asked = 0.0  # drafts
        self.found = 0.0  # of these, those in which there was something to draft
        # by level: drafts that found something and were asked for this depth
        self.searched: list[float] = []
        self.present: list[float] = []  # of these, those that were as deep
        # by level: sums of the share of the allowed nodes that these drafted
        self.filled: list[float] = []

    def add(
        self,
        asked: int,
        width: int,
        nodes: list[float],
        ranks: list[list[int]],
        kept: float = 1.0,
    ) -> None:
        """Record one draft.

        asked: the depth that it was limited to. nodes: for each level drafted, the share of its
        allowed nodes. ranks: by row, see `ranks`. kept: the share of acceptance that the age of its
        view has left (1: a new view).
        """
        self.fade(self.constants.fade)
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
        widths = self.constants.widths
        for w in widths[: widths.index(width) + 1]:
            self._count(self.accepted[w], self.tried[w], w, len(nodes), ranks, kept)

    @staticmethod
    def _count(
        accepted: list[float],
        tried: list[float],
        width: int,
        levels: int,
        ranks: list[list[int]],
        kept: float,
    ) -> None:
        """Record one draft as if its levels had been cut to this width."""
        _extend(levels, accepted, tried)
        for row in ranks:
            good = next((i for i, rank in enumerate(row) if rank >= width), len(row))
            for level in range(min(good + 1, levels)):
                tried[level] += 1
                accepted[level] += 1 / kept if good > level else 0.0

    def fade(self, share: float) -> None:
        """Let what was seen so far count this much less."""
        self.found *= share
        self.asked *= share
        by_width = *self.accepted.values(), *self.tried.values()
        for levels in (self.searched, self.present, self.filled, *by_width):
            levels[:] = [n * share for n in levels]

    @property
    def share_found(self) -> float:
        """The expected share of steps in which something is found to draft."""
        weight = self.constants.usual_weight
        return (self.found + weight * self.finds) / (self.asked + weight)

    def means(self, widths: list[int]) -> list[float]:
        """The acceptance of a token in trees of these widths, ascending: each builds on the
        narrower one's.
        """
        c = self.constants
        means: list[float] = []
        below = self.usual
        before = 1
        for w in widths:
            counted = next(x for x in c.widths if x >= w or x == UNBOUNDED)
            prior = 1 - (1 - below) * (before / w) ** c.width_exponent
            accepted = sum(self.accepted[counted]) + c.usual_weight * prior
            below = accepted / (sum(self.tried[counted]) + c.usual_weight)
            before = w
            means.append(min(below, 1.0))
        return means

    def expected(
        self, width: int, mean: float, levels: list[float], kept: float = 1.0
    ) -> list[tuple[float, float]]:
        """By draft depth 0..len(levels): tokens of a step, the bonus token included, and nodes if
        one is found.

        mean: see `means`. levels: the nodes that each level may have. kept: as in `add`.
        """
        accepted, tried = self.accepted[width], self.tried[width]
        known, seen = len(tried), len(self.searched)
        weight = self.constants.mean_weight
        tokens = 1.0
        nodes = 0.0
        reached = self.share_found
        by_depth = [(tokens, nodes)]
        for level, allowed in enumerate(levels):
            a, t = (accepted[level], tried[level]) if level < known else (0.0, 0.0)
            chance = kept * (a + weight * mean) / (t + weight)
            reached *= chance if chance < 1 else 1.0
            deep = 1.0
            full = 1.0
            if level < seen:
                deep = (self.present[level] + 1) / (self.searched[level] + 1)
                full = (self.filled[level] + 1) / (self.present[level] + 1)
            tokens += deep * reached
            nodes += deep * full * allowed
            by_depth.append((tokens, nodes))
        return by_depth


def _extend(levels: int, *lists: list[float]) -> None:
    for counts in lists:
        counts += [0.0] * (levels - len(counts))


def ranks(tree: Tree, verdict: Verdict) -> list[list[int]]:
    """By row, for every accepted draft, how many nodes of its level precede it in the tree."""
    counts = verdict.count.tolist()
    if tree.size == int(tree.depth.max()) + 1:
        return [[0] * (n - 1) for n in counts]
    by_row: list[list[int]] = []
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
    """By level of a tree of this depth, the share of its allowed nodes; levels: how many those
    are.
    """
    if tree.size == depth + 1:
        return [1 / levels[d] if d < len(levels) else 1.0 for d in range(depth)]
    counts = [0] * (depth + 1)
    for row in zip(*tree.depth.tolist(), strict=True):
        counts[max(row)] += 1
    return [min(n / levels[d], 1.0) if d < len(levels) else 1.0 for d, n in enumerate(counts[1:])]
