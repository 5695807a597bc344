"""The shape of the next draft: the most expected tokens per predicted second, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from longdraft.core import UNBOUNDED
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.decision import CAPTURE_ONLY, PLAIN, Decision, Draft, Plain
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance
from longdraft.drafters.adaptive.pause import Pause
from longdraft.drafters.adaptive.prices import CostTable


class Rated(NamedTuple):
    """A decision and its expected rate, in plain decoding's."""

    rate: float
    decision: Draft | Plain


def kept(stays: int, constants: Constants = DEFAULTS) -> float:
    """The share of acceptance that is left, on average, where each view stays for this many
    steps.
    """
    return 1 - constants.aging * (stays - 1) / 2


@dataclass
class Pace:
    """Decides from expected acceptance and predicted costs; it reads no clock.

    No draft is made that could bring the budget's debt above its limit. While drafting is off,
    plain steps capture nothing; now and then a glance is drafted, at intervals that grow with the
    debt. table: the costs; None: not known yet. stays: for how many steps a view stays. rows: that
    a step decodes.
    """

    acceptance: LearnedAcceptance
    budget: Budget
    table: CostTable | None = None
    constants: Constants = DEFAULTS
    stays: int = 1
    rows: int = 1
    pause: Pause = field(default_factory=Pause)
    # the best shape, whatever the budget; None: not known for these costs and this acceptance
    _best: Rated | None = field(default=None, repr=False)

    def decide(self, captured: bool = False) -> Decision:
        """The next step. captured: whether the step before has captured what a draft needs."""
        if self.table is None:
            return CAPTURE_ONLY
        if self.pause.rests():
            return PLAIN
        if self.pause.glancing:
            return self._glance(captured)
        decision = self.best().decision
        if isinstance(decision, Draft) and not self.budget.allows(self._cost(decision) - 1):
            decision = self._search(self.budget.slack).decision
        if isinstance(decision, Plain):
            self.rest()
            return PLAIN
        return decision if captured else CAPTURE_ONLY

    def _glance(self, captured: bool) -> Decision:
        """A glance, once the budget allows it and the step before has captured."""
        assert self.table is not None
        wait = self.budget.wait(self._glance_cost(captured))
        if wait:
            self.pause.begin(min(wait, self.constants.longest_pause))
            return PLAIN
        if not captured:
            return CAPTURE_ONLY
        self.pause.end()
        return self._glance_draft

    @property
    def _glance_draft(self) -> Draft:
        assert self.table is not None
        return Draft(self.constants.glance_depth, self.table.widths[0])

    def best(self) -> Rated:
        """The best shape, whatever the budget."""
        if self._best is None:
            self._best = self._search()
        return self._best

    def changed(self) -> None:
        """Costs or acceptance are no longer what they were."""
        self._best = None

    def reprice(self, table: CostTable, rows: int = 1) -> None:
        """Costs are now these: the rows have become longer, more or fewer."""
        self.table = table
        self.rows = rows
        self.changed()

    def renew(self) -> None:
        """Choose for how many steps a view stays."""
        rates = ((self._search(stays=age).rate, -age) for age in self.constants.view_ages)
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
        c = self.constants
        steps = c.longest_pause
        if self._could_pay():
            steps = ceil(c.pause_per_debt * max(self.budget.debt, c.min_debt))
        wait = min(self.budget.wait(self._glance_cost(captured=False)), c.longest_pause)
        self.pause.begin(max(steps, wait, 1))
        self.acceptance.fade(c.fade_at_rest)
        self.changed()

    def _glance_cost(self, captured: bool) -> float:
        """Plain steps that a glance costs beyond its one token, with the step before that captures
        what it needs.
        """
        assert self.table is not None
        look = 0.0 if captured else self.table.look
        return self._cost(self._glance_draft) - 1 + self.table.once + look

    def _could_pay(self) -> bool:
        """Whether any shape would be faster than plain decoding if all of it were accepted."""
        assert self.table is not None
        margin = self.margin
        shapes = (
            Draft(depth, width)
            for width in self.table.widths
            for depth in range(1, len(self.table.draft[width]))
        )
        return any(shape.depth + 1 > margin * self._cost(shape) for shape in shapes)

    def _cost(self, draft: Draft) -> float:
        """Plain steps that a draft of this shape takes if it is as large as it may be."""
        assert self.table is not None
        nodes = sum(self.table.levels[draft.width][: draft.depth])
        drafted = self.table.draft[draft.width][draft.depth]
        return drafted + self.table.verify(nodes) + self.table.look / self.stays

    @property
    def margin(self) -> float:
        return self.constants.margin + self.constants.margin_per_row * (self.rows - 1)

    def _search(
        self, slack: float = UNBOUNDED, least: float | None = None, stays: int | None = None
    ) -> Rated:
        """The shape of the highest rate of those that cost at most `slack` more than a plain step;
        no draft below a rate of `least` (default: the margin). stays: as of the pace.
        """
        table = self.table
        accepted = self.acceptance
        assert table is not None
        least = self.margin if least is None else least
        stays = stays or self.stays
        rare = self.constants.rare
        rate = least
        shape: tuple[int, int] | None = None
        share = accepted.share_found
        look = table.look / stays
        means = accepted.means([table.sizes[w] for w in table.widths])
        left = kept(stays, self.constants)
        for width, mean in zip(table.widths, means, strict=True):
            draft = table.draft[width]
            levels = table.levels[width]
            before = 1.0
            most = 0.0
            expected = accepted.expected(width, mean, levels, left)
            for depth in range(1, len(expected)):
                tokens, nodes = expected[depth]
                most += levels[depth - 1]
                if slack < UNBOUNDED and draft[depth] + table.verify(most) + look - 1 > slack:
                    break
                cost = draft[depth] + look + share * table.verify(nodes) + 1 - share
                if tokens > rate * cost:
                    rate = tokens / cost
                    shape = depth, width
                if tokens - before < rare:
                    break
                before = tokens
        if shape is None:
            return Rated(1.0 if least else 0.0, PLAIN)
        return Rated(rate, Draft(*shape))
