"""Of several drafters, the one whose forecast is best drafts; forecasts follow from what was
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core import Captures, CaptureSpec, DraftLimits, KVView, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.adaptive_draft import AdaptiveDraft, remaining
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.prices import Prices
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined

EVERY = 8  # steps between two comparisons of forecasts while one drafts
RARELY = 32  # while drafting is off
# seconds that a comparison takes for each drafter, and the share of time it may take
COMPARING = 1e-4
SHARE = 0.02
# another drafter must promise this many times the rate of the one in use, or of plain decoding
BETTER = 1.1
# the share of a forecast that counts where costs are only roughly known and the drafter is not in
# use
DOUBTS = 0.85
FORGET = 0.9  # what a drafter that is not in use has seen counts this much less after EVERY steps


class Auto(Combined[AdaptiveDraft]):
    """One of its drafters is in use at a time, as an AdaptiveDraft; all of them share one budget of
    what may be lost.

    Each has a forecast: the tokens per predicted second that it is expected to bring. At first it
    follows from costs and from what is usual for such drafters, later from what was accepted. The
    best one drafts; every EVERY steps, or once it turns itself off, forecasts are compared again,
    and one that promises BETTER times as much takes over. What was seen of the others fades, so
    that one that was refused gets another chance. Before another drafter's first draft there is a
    step without a draft that captures what it needs.
    """

    def __init__(
        self, drafters: Sequence[Drafter], prices: Prices | None = None, fixed: Prices | None = None
    ):
        budget = Budget()
        self.combine(
            [
                d if isinstance(d, AdaptiveDraft) else AdaptiveDraft(d, prices, fixed)
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
        doubts = DOUBTS if drafter.inner.rough and drafter is not self.now else 1.0
        return doubts * drafter.promise(seqs, remaining(seqs))

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
        every = max(RARELY if self.now.pace.off else EVERY, self._worth)
        if len(self.drafters) > 1 and (self.steps >= every or self.now.just_rested):
            self._compare(seqs)

    @property
    def _worth(self) -> float:
        """Steps that take so long that a comparison is a small share of them: predicted, so no
        clock is read.
        """
        table = self.now.pace.table
        return 0 if table is None else COMPARING * len(self.drafters) / (SHARE * table.plain)

    def _compare(self, seqs: Sequences) -> None:
        forget = FORGET ** (self.steps / EVERY)
        self.steps = 0
        for d in self.drafters:
            if d is not self.now:
                d.pace.acceptance.fade(forget)
                d.pace.changed()
        best = self._best(seqs)
        if best is not self.now and self._promise(best, seqs) > BETTER * max(
            self._promise(self.now, seqs), 1.0
        ):
            self._switch(best)
