"""Drafts with the drafter whose forecast is best; forecasts follow from the tokens that were
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core import Captures, CaptureSpec, DraftLimits, KVView, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.adaptive_draft import AdaptiveDraft, remaining
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.prices import Prices
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined


class Auto(Combined[AdaptiveDraft]):
    """One of its drafters is in use at a time, as an AdaptiveDraft; all of them share one budget of
    what may be lost.

    Each has a forecast: the tokens per predicted second that it is expected to bring. At first it
    follows from costs and from what is usual for such drafters, later from what was accepted. The
    best one drafts; every few steps, or once it turns itself off, forecasts are compared again, and
    one that is clearly better takes over. What was seen of the others fades, so that one that was
    refused gets another chance. Before another drafter's first draft there is a step without a
    draft that captures what it needs.

    now: the drafter in use. fresh: whether it has just taken over. steps: since the last
    comparison.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        prices: Prices | None = None,
        fixed: Prices | None = None,
        constants: Constants = DEFAULTS,
    ):
        self.constants = constants
        budget = Budget(constants=constants)
        self.combine(
            [
                d
                if isinstance(d, AdaptiveDraft)
                else AdaptiveDraft(d, prices, fixed, constants=constants)
                for d in drafters
            ]
        )
        for d in self.drafters:
            d.pace.budget = budget
        self.has_draft_probs = all(d.has_draft_probs for d in drafters)
        self.max_depth = max(d.max_depth for d in drafters)
        self.now = self.drafters[0]
        self.fresh = False
        self.steps = 0

    def ready(self, seqs: Sequences) -> None:
        self.now.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self._choose(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self._choose(seqs)

    def _choose(self, seqs: Sequences) -> None:
        """Use the drafter with the best forecast; the step that comes next drafts nothing."""
        self.now = self._best(seqs)
        self.fresh = False
        self.steps = 0
        self.forecast = self.now.forecast

    def _best(self, seqs: Sequences) -> AdaptiveDraft:
        return max(self.drafters, key=lambda d: self._promise(d, seqs))

    def _promise(self, drafter: AdaptiveDraft, seqs: Sequences) -> float:
        """The drafter's forecast for what is left, with doubts where nothing has shown it yet to be
        right.
        """
        doubted = drafter.rough and drafter is not self.now
        share = self.constants.doubts if doubted else 1.0
        return share * drafter.promise(seqs, remaining(seqs))

    def _switch(self, drafter: AdaptiveDraft) -> None:
        """Use this drafter from now on; the next step drafts nothing, and captures what it
        needs.
        """
        self.now = drafter
        self.fresh = True
        drafter.begin_turn()

    def proposed_by(self, node: int) -> str:
        return self.now.proposed_by(node)

    def view_read(self) -> KVView | None:
        return self.now.view_read()

    def captures(self) -> CaptureSpec:
        return self.now.captures()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        return tree if self.fresh else self.now.grow(tree, seqs, limits)

    def idle(self) -> None:
        self.now.idle()

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.fresh = False
        self.now.update(seqs, tree, verdict, captured)
        self.steps += 1
        if len(self.drafters) > 1 and (self.steps >= self._interval or self.now.just_rested):
            self._compare(seqs)

    @property
    def _interval(self) -> float:
        """Steps between two comparisons, which may take a small share of the predicted time."""
        c = self.constants
        steps = c.compare_rarely if self.now.pace.pause.left else c.compare_every
        table = self.now.pace.table
        if table is None:
            return steps
        return max(steps, c.compare_s * len(self.drafters) / (c.compare_share * table.plain))

    def _compare(self, seqs: Sequences) -> None:
        forget = self.constants.forget ** (self.steps / self.constants.compare_every)
        self.steps = 0
        for d in self.drafters:
            if d is not self.now:
                d.pace.acceptance.fade(forget)
                d.pace.changed()
        best = self._best(seqs)
        if best is self.now:
            return
        least = self.constants.better * max(self._promise(self.now, seqs), 1.0)
        if self._promise(best, seqs) > least:
            self._switch(best)
