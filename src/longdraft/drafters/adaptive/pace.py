"""Which shape the next draft has: the most expected tokens per predicted second, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from longdraft.core import UNBOUNDED
from longdraft.drafters.adaptive.acceptance import Acceptance
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.prices import Table

# All but RARE and STAYS are set by benchmarks/adaptive_simulation.py (docs/log).
# in place of a depth: no draft; no draft, but captures for the next one
PLAIN = 0
CAPTURE = -1
MARGIN = 1.02  # a draft must promise this many times plain decoding's rate: predictions have errors
FURTHER = 0.02  # for each further row, more: what many rows cost together is less well predicted
GLANCE = 1  # tokens drafted to test whether drafting that was turned off has become worthwhile
OFF = 8  # drafting stays off for at least this many times what it has cost so far, in plain steps
LEAST = 0.1  # plain steps: the smallest cost that counts for it
DATED = 0.5  # what was seen before drafting was turned off counts this much less
# plain steps without drafting where even fully accepted drafts would not pay, or may not be tried
HOPELESS = 64
CHOOSING = 0.04  # the share of acceptance that each step of a view's age costs
STAYS = (1, 2, 4, 8)  # for how many steps a view may stay
RARE = 0.01  # deeper levels are not considered where fewer drafts than this are accepted so far


class Choice(NamedTuple):
    """A shape and its expected rate, in plain decoding's; depth 0: no draft."""

    rate: float
    depth: int = PLAIN
    width: int = UNBOUNDED


def kept(stays: int) -> float:
    """The share of acceptance that is left, on average, where each view stays for this many
    steps.
    """
    return 1 - CHOOSING * (stays - 1) / 2


@dataclass
class Pace:
    """Decides from what is expected to be accepted and from predicted costs; no clock is read here.

    No draft is made that could bring the budget's debt above its limit. While drafting is off,
    plain steps capture nothing; now and then GLANCE tokens are drafted, at intervals that grow with
    the debt.
    """

    acceptance: Acceptance
    budget: Budget
    table: Table | None = None
    stays: int = 1  # for how many steps a view stays
    rows: int = 1  # that a step decodes
    off: int = 0  # plain steps until the next glance
    glancing: bool = False  # whether the next draft is a glance
    # the best shape whatever the budget; None: not known
    _choice: Choice | None = field(default=None, repr=False)

    def shape(self, captured: bool = False) -> tuple[int, int]:
        """Depth and width of the next draft. captured: whether the step before has captured what a
        draft needs.
        """
        if self.table is None:
            return CAPTURE, UNBOUNDED
        if self.off:
            self.off -= 1
            if self.off:
                return PLAIN, UNBOUNDED
            self.glancing = True
        if self.glancing:
            wait = self.budget.wait(self._glance(captured))
            if wait:
                self.off = min(wait, HOPELESS)
                self.glancing = False
                return PLAIN, UNBOUNDED
            if not captured:
                return CAPTURE, UNBOUNDED
            self.glancing = False
            return GLANCE, self.table.widths[0]
        choice = self.best()
        if choice.depth:
            extra = self._cost(choice) - 1
            if not self.budget.allows(extra):
                choice = self._search(self.budget.slack)
        if not choice.depth:
            self.rest()
            return PLAIN, UNBOUNDED
        return (choice.depth, choice.width) if captured else (CAPTURE, UNBOUNDED)

    def best(self) -> Choice:
        """The best shape, whatever the budget."""
        if self._choice is None:
            self._choice = self._search()
        return self._choice

    def changed(self) -> None:
        """Costs or acceptance are no longer what they were."""
        self._choice = None

    def reprice(self, table: Table, rows: int = 1) -> None:
        """Costs are now these: the rows have become longer, more or fewer."""
        self.table = table
        self.rows = rows
        self.changed()

    def renew(self) -> None:
        """Choose for how many steps a view stays."""
        rates = []
        for self.stays in STAYS:
            rates.append((self._search().rate, -self.stays))
        self.stays = -max(rates)[1]
        self.changed()

    def forecast(self, remaining: float) -> float:
        """Expected tokens per predicted second over plain decoding's, for this many tokens; below
        1: it would lose.
        """
        if self.table is None or remaining <= 0:
            return 0.0
        rate = self._search(least=0.0).rate
        return remaining / (self.table.once + remaining / rate) if rate else 0.0

    def rest(self) -> None:
        """Turn drafting off for a while."""
        assert self.table is not None
        pause = ceil(OFF * max(self.budget.debt, LEAST)) if self._could_pay() else HOPELESS
        self.off = max(pause, min(self.budget.wait(self._glance(False)), HOPELESS), 1)
        self.acceptance.fade(DATED)
        self.changed()

    def _glance(self, captured: bool) -> float:
        """Plain steps that a glance costs beyond its one token, with the step before that captures
        what it needs.
        """
        assert self.table is not None
        glance = Choice(0.0, GLANCE, self.table.widths[0])
        return self._cost(glance) - 1 + self.table.once + (0.0 if captured else self.table.look)

    def _could_pay(self) -> bool:
        """Whether any shape would be faster than plain decoding if all of it were accepted."""
        assert self.table is not None
        depths = ((w, d) for w in self.table.widths for d in range(1, len(self.table.draft[w])))
        return any(d + 1 > self.margin * self._cost(Choice(0.0, d, w)) for w, d in depths)

    def _cost(self, choice: Choice) -> float:
        """Plain steps that a draft of this shape takes if it is as large as it may be."""
        assert self.table is not None
        nodes = sum(self.table.levels[choice.width][: choice.depth])
        return (
            self.table.draft[choice.width][choice.depth]
            + self.table.verify(nodes)
            + self.table.look / self.stays
        )

    @property
    def margin(self) -> float:
        return MARGIN + FURTHER * (self.rows - 1)

    def _search(self, slack: float = UNBOUNDED, least: float | None = None) -> Choice:
        """The shape of the highest rate of those that cost at most `slack` more than a plain step;
        no draft below a rate of `least`.
        """
        table = self.table
        accepted = self.acceptance
        assert table is not None
        least = self.margin if least is None else least
        best = Choice(least)
        share = accepted.share_found
        look = table.look / self.stays
        means = accepted.means([table.sizes[w] for w in table.widths])
        left = kept(self.stays)
        for width, mean in zip(table.widths, means, strict=True):
            draft = table.draft[width]
            before = 1.0
            most = 0.0
            expected = accepted.expected(width, mean, table.levels[width], left)
            for depth in range(1, len(expected)):
                tokens, nodes = expected[depth]
                most += table.levels[width][depth - 1]
                if slack < UNBOUNDED and draft[depth] + table.verify(most) + look - 1 > slack:
                    break
                cost = draft[depth] + look + share * table.verify(nodes) + 1 - share
                if tokens > best.rate * cost:
                    best = Choice(tokens / cost, depth, width)
                if tokens - before < RARE:
                    break
                before = tokens
        return best if best.depth else Choice(1.0 if least else 0.0)
