"""Draft depth and width chosen at every step by predicted costs and by what was accepted, down to
no drafting.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from longdraft.core import (
    Captures,
    CaptureSpec,
    DraftLimits,
    Sequences,
    Tree,
    Verdict,
    Verifier,
    reject,
)
from longdraft.drafters.adaptive.basis import Basis
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.decision import (
    BEGINNING,
    BEGINNING_PLAIN,
    PLAIN,
    RESTING,
    CurrentStep,
    Decision,
    Draft,
    Plain,
    Undecided,
)
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance, filled, ranks
from longdraft.drafters.adaptive.pace import Pace, kept
from longdraft.drafters.adaptive.prices import (
    Prices,
    levels_of,
    scales_of,
    tabulate,
    verification,
)
from longdraft.drafters.adaptive.prices_in_use import PricesInUse, by_arithmetic
from longdraft.drafters.adaptive.slowest_row import SlowestRow
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined
from longdraft.models.lm import LM

NOTHING = CaptureSpec()


class AdaptiveDraft(Combined[Drafter]):
    """Adapts the inner drafter's depth and width, and turns drafting off while none is expected to
    pay.

    Costs are predicted before the first step, so nothing is tried to learn them; what is learned is
    which drafts are accepted, and it is kept from one text to the next. With several rows, costs
    are those of all rows together. While drafting is off, plain steps capture nothing. prices
    (default: by arithmetic, once a pass has been verified): what steps cost. fixed: the prices
    under verify=reject, where the output depends on what is drafted; they must be the same in every
    run. default: makes the prices if none are given.

    forecast: the expected tokens per predicted second, in plain decoding's, when the text began;
    None: not known. step: the current step and its decision. drafts: how many were made.
    """

    def __init__(
        self,
        inner: Drafter,
        prices: Prices | None = None,
        fixed: Prices | None = None,
        constants: Constants = DEFAULTS,
        default: Callable[[LM], Prices] = by_arithmetic,
    ):
        self.combine((inner,))
        self.inner = inner
        self.constants = constants
        self.has_draft_probs = inner.has_draft_probs
        self.max_depth = inner.max_depth
        self.is_chain = False
        self.prices = PricesInUse(prices, fixed, default)
        price = inner.price()
        acceptance = LearnedAcceptance(finds=price.finds, constants=constants)
        self.pace = Pace(acceptance, Budget(constants=constants), constants=constants)
        self.forecast: float | None = None
        self.step = BEGINNING
        self.drafts = 0
        self._captures_nothing = inner.captures() == NOTHING
        self._levels = levels_of(inner, constants)
        self._basis = Basis()  # of the pace's table
        self._slowest = SlowestRow()
        self._unanchored = 0  # drafts in a row while no plain step was timed lately
        self._began = 0.0  # when the current step's verification began; 0: it is not timed

    def verified_by(self, verify: Verifier) -> None:
        super().verified_by(verify)
        self._decide_for(verify is reject)

    def _decide_for(self, rejects: bool) -> None:
        """From now on the prices decide that may do so under this verifier."""
        if rejects is not self.prices.rejects:
            self.prices.rejects = rejects
            self._basis = Basis()

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.pace.budget.begin()
        self._meet(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """Keeps all that was learned; the next step drafts nothing."""
        super().enter(seqs, row)
        self._meet(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        super().leave(seqs, row)
        self._sampled_as(seqs)

    def _meet(self, seqs: Sequences) -> None:
        """Rows begin: forecast what drafting brings; if nothing, the step before the first draft
        captures nothing.
        """
        self.step = BEGINNING
        self.forecast = None
        self._slowest.forget()
        self._began = 0.0
        if self.prices.now is not None and len(seqs.length):
            self._sampled_as(seqs)
            self._reprice(seqs)
            self.forecast = max(self.pace.forecast(remaining(seqs)), 1.0)
            if isinstance(self.pace.best().decision, Plain):
                self.step = BEGINNING_PLAIN

    def _sampled_as(self, seqs: Sequences) -> None:
        """Expect what is usual for the rows' sampler before anything was seen."""
        if not len(seqs.length):
            return
        usual = self.inner.price().usual[0 if seqs.sampler.greedy else 1]
        if usual != self.pace.acceptance.usual:
            self.pace.acceptance.usual = usual
            self.pace.changed()

    def _reprice(self, seqs: Sequences) -> None:
        """Predict costs again if the rows are others or have grown, or predictions were
        corrected.
        """
        prices = self.prices.now
        assert prices is not None
        rows = len(seqs.length)
        slots = int(seqs.cache.length.sum())
        scales = scales_of(prices, self.inner)
        fits = self._basis.fits(rows, slots, self.constants.growth)
        if fits and not self._basis.moved(scales, self.constants.moved):
            return
        if rows != self._basis.rows:
            self.pace.pause.shorten()
        self._basis = Basis(rows, slots, scales)
        table = tabulate(prices, self.inner, seqs, self._levels, self.constants)
        self.pace.reprice(table, rows)
        if self.inner.renews:
            self._renew()

    def _renew(self) -> None:
        self.pace.renew()
        self.inner.stay(self.pace.stays)

    def captures(self) -> CaptureSpec:
        decision = self.step.decision
        if not decision.captures:
            return NOTHING
        if isinstance(decision, Draft) or not self.inner.renews:
            return self.inner.captures()
        return self.inner.choosing()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        pause = self.pace.pause
        left = pause.left
        if left > 1 and left % self.constants.timed_every and len(seqs.length) == self._basis.rows:
            pause.left = left - 1  # microseconds count here
            self.step = RESTING
            return tree
        captured = self.step.decision.captures or self._captures_nothing
        rejects = tree.draft_probs is not None
        if rejects is not self.prices.rejects and self.prices.now is not None:
            self._decide_for(rejects)  # it was not told which verifier is in use
            captured = self._captures_nothing  # what other prices decided does not show
        prices = self.prices.now
        if prices is None:  # known once a pass has been verified
            return tree
        self._reprice(seqs)
        decision = self._decide(prices, limits, captured)
        if isinstance(decision, Draft):
            tree = self._draft(decision, prices, tree, seqs, limits)
        else:
            self.step = CurrentStep(decision)
        self._began = perf_counter() if prices.corrects else 0.0
        return tree

    def _decide(self, prices: Prices, limits: DraftLimits, captured: bool) -> Decision:
        """The pace's decision within these limits, or a plain step where one must be timed."""
        decision = self.pace.decide(captured=captured)
        if not isinstance(decision, Draft):
            return decision
        if not limits.depth or self._anchors(prices):
            return PLAIN
        if limits.depth < decision.depth:
            return Draft(limits.depth, decision.width)
        return decision

    def _anchors(self, prices: Prices) -> bool:
        """Whether a plain step is timed in place of a draft, so that other times mean something."""
        if not prices.corrects:
            return False
        self._unanchored = 0 if prices.anchored else self._unanchored + 1
        if self._unanchored <= self.constants.anchor_after:
            return False
        self._unanchored = 0
        return True

    def _draft(
        self, draft: Draft, prices: Prices, tree: Tree, seqs: Sequences, limits: DraftLimits
    ) -> Tree:
        live = tuple(
            not done and deepest >= draft.depth  # a draft that is cut shows no refusal
            for done, deepest in zip(seqs.done.tolist(), seqs.deepest, strict=True)
        )
        self.inner.ready(seqs)
        begin = perf_counter() if prices.corrects else 0.0
        tree = self.inner.grow(tree, seqs, limits.within(draft.depth, draft.width))
        depth = int(tree.depth.max())
        self.step = CurrentStep(draft, depth, live)
        if prices.corrects and depth == draft.depth and self.pace.table is not None:
            spent = perf_counter() - begin
            table = self.pace.table
            predicted = table.drafted(draft.depth, draft.width) * table.plain
            prices.observe(self.inner, predicted, spent)
            if self._basis.moved(scales_of(prices, self.inner), self.constants.moved):
                self._reprice(seqs)  # this draft's cost, as it is now known
        return tree

    def idle(self) -> None:
        """Nothing is learned from the step, which captures what a draft needs unless drafting is
        off.
        """
        super().idle()
        self._began = 0.0
        if self.step.decision.captures:
            self.step = BEGINNING

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        decision = self.step.decision
        if not decision.captures and not self._began:
            if isinstance(decision, Plain):
                self.pace.budget.owe(1.0, 1.0)
                self._slowest.plain_steps(1)
            return
        self._observe_verification(tree, captured)
        if decision.captures:
            super().update(seqs, tree, verdict, captured)
        if self.prices.now is None:
            assert captured.target is not None
            self.prices.learn(captured.target)
            self._sampled_as(seqs)
        if not isinstance(decision, Undecided) and self.pace.table is not None:
            self._account(decision, seqs, tree, verdict, captured)

    def _observe_verification(self, tree: Tree, captured: Captures) -> None:
        """Let the time since the draft correct predictions, if it was taken."""
        prices = self.prices.now
        if not self._began or self.pace.table is None or prices is None:
            return
        plain = isinstance(self.step.decision, Plain)
        part = "plain" if plain else verification(captured.spec)
        seconds = self._verified(tree, captured) * self.pace.table.plain
        prices.observe(part, seconds, perf_counter() - self._began, tree.size)
        self._began = 0.0

    def _verified(self, tree: Tree, captured: Captures) -> float:
        """Predicted plain steps of the verification."""
        table = self.pace.table
        assert table is not None
        looks = verification(captured.spec) == "captured"
        return table.verify(tree.size - 1) + (table.look if looks else 0.0)

    def _account(
        self,
        decision: Decision,
        seqs: Sequences,
        tree: Tree,
        verdict: Verdict,
        captured: Captures,
    ) -> None:
        """Learn from a step: what it was expected to cost, and what it brought."""
        table = self.pace.table
        assert table is not None
        tokens = 1.0
        cost = self._verified(tree, captured)
        if isinstance(decision, Draft):
            cost += table.drafted(decision.depth, decision.width)
            tokens += self._learn(decision, tree, verdict)
        self.pace.budget.owe(cost, self._slowest.gain(seqs, tokens))

    def _learn(self, draft: Draft, tree: Tree, verdict: Verdict) -> float:
        """Learn from a draft -> the mean of what was accepted, of all running rows."""
        table = self.pace.table
        assert table is not None
        rows = zip(ranks(tree, verdict), self.step.live, strict=True)
        accepted = [row for row, live in rows if live]
        levels = table.levels.get(draft.width, [])
        nodes = filled(tree, self.step.depth, levels) if self.step.depth else []
        share = kept(self.pace.stays, self.constants)
        self.pace.acceptance.add(draft.depth, draft.width, nodes, accepted, share)
        self.pace.changed()
        self.drafts += 1
        if self.inner.renews and self.drafts % self.constants.renew_every == 0:
            self._renew()
        return sum(map(len, accepted)) / max(len(accepted), 1)


def remaining(seqs: Sequences) -> int:
    """The most tokens that any row may still emit."""
    left = (seqs.prompt + seqs.limit - seqs.length).masked_fill(seqs.done, 0)
    return max(left.tolist(), default=0)
