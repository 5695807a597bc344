"""How deep to draft now, down to not at all: by what each depth has cost and brought so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from longdraft.cache import KVCache
from longdraft.drafters.base import Drafter
from longdraft.model import Taps
from longdraft.sequences import Sequences
from longdraft.tree import Tree
from longdraft.verify import Verdict

FADE = 0.97  # what a round's acceptance still counts one round later
HOPE = 0.7  # of a draft nobody has seen refused yet
RECENT = 7  # rounds of a depth whose middle one says what it costs
SHORT, LONG = 64, 512  # rounds without drafts before another try: doubled while it fails
TAPPED = -1  # in place of a depth: a plain step that leaves behind what the next draft is guided by


class Ledger:
    """Tokens and seconds a round of each depth is expected to take, from the latest rounds alone.

    A depth that was never drafted is judged by those that were: its acceptance by the mean over depths, its cost along
    the line through the two deepest known.
    """

    def __init__(self) -> None:
        self.good: list[float] = []  # by depth: drafts accepted, of those whose parent was
        self.tries: list[float] = []
        self.spent: dict[int, deque[float]] = {}

    def note(self, depth: int, asked: int, accepted: list[int], seconds: float) -> None:
        """One round: the tree's depth, the depth that was asked for, drafts accepted by row, its time."""
        self.spent.setdefault(depth, deque(maxlen=RECENT)).append(seconds)
        while len(self.good) < asked:
            self.good.append(0.0)
            self.tries.append(0.0)
        for i in range(asked):
            reached, taken = (sum(a >= n for a in accepted) for n in (i, i + 1))
            if reached:
                self.good[i] = FADE * self.good[i] + taken / reached
                self.tries[i] = FADE * self.tries[i] + 1

    def tokens(self, deepest: int) -> list[float]:
        """Expected of a round of each depth 0..deepest, bonus token included."""
        mean = (sum(self.good) + 2 * HOPE) / (sum(self.tries) + 2)
        found, alive = [1.0], 1.0
        for i in range(deepest):
            good, tries = (self.good[i], self.tries[i]) if i < len(self.good) else (0.0, 0.0)
            alive *= (good + mean) / (tries + 1)
            found.append(found[-1] + alive)
        return found

    def seconds(self, deepest: int) -> list[float]:
        """Of a round of each depth 0..deepest."""
        known = sorted((d, sorted(times)[(len(times) - 1) // 2]) for d, times in self.spent.items())
        found, above = [], 0
        for depth in range(deepest + 1):
            while above < len(known) - 1 and known[above][0] < depth:
                above += 1
            (d1, t1), (d0, t0) = known[above], known[max(above - 1, 0)]
            line = t1 if d1 == d0 else t0 + (t1 - t0) * (depth - d0) / (d1 - d0)
            found.append(max(line, known[0][1]))
        return found

    def best(self) -> tuple[float, int]:
        """The highest rate, tokens a second, and its depth: at most twice the deepest tried, the least of equals."""
        deepest = 2 * max(self.spent)
        rates = [n / s for n, s in zip(self.tokens(deepest), self.seconds(deepest), strict=True)]
        return max(rates), rates.index(max(rates))


class Pace(Drafter):
    """The inner drafter's trees, never deeper than pays, and plain steps where no draft does; it reads only the past.

    The first rounds draft one token, then none, to know what both cost. Where nothing pays, the inner drafter sleeps:
    plain steps without taps, then one with them and one draft, to see whether it would pay by now. What is emitted
    does not depend on any of it.
    """

    def __init__(self, inner: Drafter, clock: Callable[[], float] = perf_counter):
        self.inner, self.clock = inner, clock
        self.keeps_law, self.needs_all = inner.keeps_law, inner.needs_all

    def start(self, seqs: Sequences) -> None:
        self.ledger, self.plan = Ledger(), [1, 0, TAPPED, 1]  # depths of the next rounds
        self.asleep, self.patience = 0, SHORT
        self.asked: int | None = None  # depth of the round at hand
        self.inner.start(seqs)

    @property
    def caches(self) -> list[KVCache]:
        return self.inner.caches

    @property
    def blind(self) -> bool:
        """Whether the round at hand is hidden from the inner drafter: a plain step as cheap as there is."""
        return self.asked == 0 and not self.needs_all

    def wants(self) -> Taps:
        return Taps() if self.blind else self.inner.wants()

    def grow(self, tree: Tree, seqs: Sequences) -> Tree:
        self.began, self.asked = self.clock(), self._depth()
        self.depth = 0
        if self.asked > 0:
            self.live, seqs.most = (~seqs.done).tolist(), self.asked
            try:
                tree = self.inner.grow(tree, seqs)
            finally:
                seqs.most = None
            self.depth = int(tree.depth.max())
        return tree

    def _depth(self) -> int:
        if self.asleep:
            self.asleep -= 1
            return 0
        if self.plan:
            return self.plan.pop(0)
        _, best = self.ledger.best()
        if best:
            self.patience = SHORT
            return best
        self.asleep, self.patience = self.patience - 1, min(2 * self.patience, LONG)
        self.plan = [TAPPED, 1]  # on waking
        return 0

    def observe(self, seqs: Sequences, tree: Tree, verdict: Verdict, taps: Taps) -> None:
        if not self.blind:
            self.inner.observe(seqs, tree, verdict, taps)
        if self.asked is None or self.asked == TAPPED:  # the first step of all drafts nothing
            return
        accepted = []
        if self.asked:
            accepted = [n - 1 for n, live in zip(verdict.count.tolist(), self.live, strict=True) if live]
        self.ledger.note(self.depth, self.asked, accepted, self.clock() - self.began)
