"""Which shape the next draft has: what has been measured, what is to be measured, and when drafting is off."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from longdraft.core import UNBOUNDED
from longdraft.drafters.adaptive.cost_model import CostModel, median

# PROBE, OFF and GLANCE are set by benchmarks/adaptive_simulation.py (docs/log.md); the others were not varied there.
PROBE = 4  # tokens drafted to test whether drafting pays: drafts of one token seldom pay for a step's fixed costs
GLANCE = 1  # tokens drafted to test whether drafting that was turned off is worth a probe
OFF = 4  # drafting stays off for at least this many times what it has cost so far, in plain steps
HOPELESS = 4  # longer if even fully accepted drafts would not pay: nothing but a change of costs could help
MOST = 256  # plain steps: the largest cost that counts, so that drafting is tried again in the end
RECHECK = 64  # drafting steps between measurements of a plain step or of another width
PLAIN, CAPTURE = 0, -1  # in place of a depth: no draft; no draft, but captures for the next one


@dataclass
class Pace:
    """The shapes of drafts for about one number of rows, because costs depend on how many share a pass.

    probe: depth of a probe. chain: drafts are chains, so that a probe cannot be as wide as a deep tree.
    """

    max_depth: int
    probe: int
    chain: bool
    model: CostModel = field(init=False)
    plan: list[tuple[int, int]] = field(init=False)  # depths and widths of the next steps
    off: int = 0  # plain steps until the next glance
    pause: int = 0  # steps for which drafting was last turned off; no later pause is shorter until it is on again
    debt: float = 0.0  # what drafting has cost so far beyond plain decoding of the same tokens
    drafting: int = 0  # drafting steps so far
    glancing: bool = False  # whether the next draft is a glance

    def __post_init__(self) -> None:
        self.model = CostModel(self.max_depth)
        first = self.probe if self.chain else 1  # a deep tree could cost many plain steps
        self.plan = [(PLAIN, 1), (PLAIN, 1), (CAPTURE, 1), (first, UNBOUNDED), (self.probe, 1)]

    def shape(self, captured: bool = False) -> tuple[int, int]:
        """Depth and width of the next draft. captured: whether the step before has captured what a draft needs."""
        if self.off:
            self.off -= 1
            return PLAIN, UNBOUNDED
        while self.plan and self._is_known(self.plan[0][0], captured):
            self.plan.pop(0)
        if self.plan:
            depth, width = self.plan.pop(0)
            width = width if width < self.model.widest else UNBOUNDED
            return (1 if depth == self.probe and not self.model.could_pay(depth, width) else depth), width
        _, depth, width = self.model.best()
        if depth:
            self.pause = 0
            return self._recheck(depth, width)
        narrow = 1 if self.model.widest > 1 else UNBOUNDED
        longer = 1 if self.model.could_pay(self.probe, narrow) else HOPELESS
        longer = max(longer, self.model.promise() ** -2)
        self.pause = max(self.pause, ceil(OFF * longer * max(self.debt, 1.0)))
        self.off = self.pause - 1
        self.model.halve()
        self.plan, self.glancing = [(CAPTURE, 1), (GLANCE, narrow)], True
        return PLAIN, UNBOUNDED

    def _is_known(self, step: int, captured: bool) -> bool:
        """Whether a planned step would bring nothing: plain steps may have been measured with another drafter."""
        return len(self.model.plain) > 1 if step == PLAIN else step == CAPTURE and captured

    def _recheck(self, depth: int, width: int) -> tuple[int, int]:
        """This shape; every RECHECK steps another width of this depth or a plain step, in turn."""
        self.drafting += 1
        if self.drafting % RECHECK:
            return depth, width
        others = [*(w for w in self.model.widths if w != width), None]
        other = others[self.drafting // RECHECK % len(others)]
        if other is not None:
            return depth, other
        self.plan = [(CAPTURE, 1)]
        return PLAIN, UNBOUNDED

    def plain(self, cost: float) -> None:
        """A step without a draft has cost so much."""
        self.model.plain.append(cost)

    def drafted(self, depth: int, width: int, ranks: list[list[int]], cost: float) -> float:
        """A step whose draft was so deep, and whose width was limited, has cost so much -> tokens per row."""
        tokens = 1 + sum(map(len, ranks)) / max(len(ranks), 1)
        self.model.add(depth, width, ranks, cost)
        if self.glancing and tokens > 1 and depth < self.probe:
            self.plan.insert(0, (self.probe, width))
        self.glancing = False
        return tokens

    def owe(self, cost: float, tokens: float) -> None:
        """Count what a step that was not plain has cost beyond plain decoding of its tokens."""
        if self.model.plain:
            self.debt = min(max(self.debt + cost / median(self.model.plain) - tokens, 0.0), MOST)

    def ask_again(self, depth: int, width: int) -> None:
        """Nothing was found to draft."""
        if self.debt < 1:
            self.plan.insert(0, (depth, width))
