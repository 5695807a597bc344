"""Draft depth and width chosen at every step by predicted costs and by what was accepted, down to
no drafting.
"""

from __future__ import annotations

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
from longdraft.costs.counts import counted
from longdraft.drafters.adaptive.acceptance import Acceptance, filled, ranks
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.pace import PLAIN, Pace, kept
from longdraft.drafters.adaptive.prices import Predicted, Prices, levels_of, tabulate, verification
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined

GROWN = 1 / 16  # costs are predicted again once the rows are longer by this share
MOVED = 0.03  # or once measurements have changed the ratio of predictions by this share
# while drafting is off, one plain step in this many is timed, where that may correct predictions
TIMED = 8
RENEW = 16  # drafts between two decisions how long a view stays
ANCHOR = 4  # drafts after which a plain step is timed, if none was lately


class AdaptiveDraft(Combined[Drafter]):
    """Adapts the inner drafter's depth and width, and turns drafting off while none is expected to
    pay.

    Costs are predicted before the first step, so nothing is tried to learn them; what is learned is
    which drafts are accepted, and it is kept from one text to the next. With several rows, costs
    are those of all rows together. While drafting is off, plain steps capture nothing. prices
    (default: by arithmetic, once a pass has been verified): what steps cost. fixed: the prices
    under verify=reject, where the output depends on what is drafted; they must be the same in every
    run. budget: what drafting may lose; drafters that take turns share one.

    forecast: the expected tokens per predicted second, in plain decoding's, when the text began;
    None: not known.
    """

    def __init__(
        self,
        inner: Drafter,
        prices: Prices | None = None,
        fixed: Prices | None = None,
        budget: Budget | None = None,
    ):
        self.combine((inner,))
        self.inner = inner
        self.prices = prices
        self.fixed = fixed or prices
        self.has_draft_probs = inner.has_draft_probs
        self.max_depth = inner.max_depth
        self.is_chain = False
        self.pace = Pace(Acceptance(finds=inner.finds), budget or Budget())
        self.forecast: float | None = None
        self.asked: int | None = None  # depth of the current step; None: no decision, it captures
        self.depth = PLAIN
        self.width = 1
        self._rejects = False
        self._first = True  # whether the current step is one before any decision
        self._lengths: tuple[int, int] = (0, 0)  # rows, and their slots, that the table is of
        self._levels = levels_of(inner)
        self._scales: list[float] = []
        self._drafts = 0
        self._unanchored = 0
        self._captures_nothing = inner.captures() == CaptureSpec()
        self._behind: int | None = None  # new tokens of the row that has the fewest
        self.just_rested = False  # whether the current step has turned drafting off
        self._began = 0.0

    def verified_by(self, verify: Verifier) -> None:
        super().verified_by(verify)
        self._decide_for(verify is reject)

    def _decide_for(self, rejects: bool) -> None:
        """From now on the prices decide that may do so under this verifier."""
        if rejects is not self._rejects:
            self._rejects = rejects
            self._lengths = (0, 0)

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.pace.budget.begin()
        self._meet(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """What was learned stays; the next step drafts nothing."""
        super().enter(seqs, row)
        self._meet(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        super().leave(seqs, row)
        self._sampled_as(seqs)

    def _meet(self, seqs: Sequences) -> None:
        """Rows begin: forecast what drafting brings; if nothing, the step before the first draft
        captures nothing.
        """
        self.asked = None
        self.forecast = None
        self._first = True
        self._behind = None
        if self.prices is not None and len(seqs.length):
            self._sampled_as(seqs)
            self._reprice(seqs)
            self.forecast = max(self.pace.forecast(remaining(seqs)), 1.0)
            if not self.pace.best().depth:
                self.asked = PLAIN

    def promise(self, seqs: Sequences, left: float) -> float:
        """The forecast now, for this many tokens; 0: nothing is known."""
        if self.prices is None or not len(seqs.length):
            return 0.0
        self._reprice(seqs)
        return self.pace.forecast(left)

    def begin_turn(self) -> None:
        """Draft again after others have: the step that comes next captures what a draft needs,
        without a decision.
        """
        self.asked = None
        self.depth = 0
        self.pace.off = 0
        self.pace.glancing = False
        self.pace.changed()

    def _sampled_as(self, seqs: Sequences) -> None:
        usual = (
            self.inner.usual[0 if seqs.sampler.greedy else 1]
            if len(seqs.length)
            else self.pace.acceptance.usual
        )
        if usual != self.pace.acceptance.usual:
            self.pace.acceptance.usual = usual
            self.pace.changed()

    @property
    def _now(self) -> Prices | None:
        """The prices that may decide under the verifier in use."""
        return self.fixed if self._rejects else self.prices

    def _reprice(self, seqs: Sequences) -> None:
        """Predict costs again if the rows are others or have grown, or predictions were
        corrected.
        """
        prices = self._now
        assert prices is not None
        rows = len(seqs.length)
        slots = int(seqs.cache.length.sum())
        same = (
            rows == self._lengths[0] and abs(slots - self._lengths[1]) <= GROWN * self._lengths[1]
        )
        if same and self.pace.table is not None and not self._corrected(prices):
            return
        if rows != self._lengths[0] and self.pace.off:
            self.pace.off = 1
        self._lengths = rows, slots
        self._scales = self._scale(prices)
        self.pace.reprice(tabulate(prices, self.inner, seqs, self._levels), rows)
        if self.inner.renews:
            self._renew()

    def _scale(self, prices: Prices) -> list[float]:
        parts = "verify", "captured", self.inner
        return [prices.scale(part) for part in parts] if prices.corrects else []

    def _corrected(self, prices: Prices) -> bool:
        now = zip(self._scale(prices), self._scales, strict=True)
        return any(abs(scale / before - 1) > MOVED for scale, before in now)

    def _renew(self) -> None:
        self.pace.renew()
        self.inner.stay(self.pace.stays)

    def captures(self) -> CaptureSpec:
        if self.asked == PLAIN:
            return CaptureSpec()
        drafts = self.asked is not None and self.asked > 0
        return self.inner.captures() if drafts or not self.inner.renews else self.inner.choosing()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.prices is None:  # known once a pass has been verified
            return tree
        pace = self.pace
        if (
            pace.off > 1 and pace.off % TIMED and len(seqs.length) == self._lengths[0]
        ):  # microseconds count here
            pace.off -= 1
            self.asked = PLAIN
            self.depth = 0
            self._began = 0.0
            self._first = False
            self.just_rested = False
            return tree
        if self._rejects is not (
            tree.draft_probs is not None
        ):  # where it was not told what verifies
            self._decide_for(not self._rejects)
            self.asked = PLAIN  # so that what was decided by other prices does not show
        self._first = False
        self._reprice(seqs)
        self.live = (~seqs.done).tolist()
        resting = self.pace.off
        captured = self.asked != PLAIN or self._captures_nothing
        (self.asked, self.width), self.depth = self.pace.shape(captured=captured), 0
        self.just_rested = self.pace.off > resting
        if self.asked > 0:
            self.asked = min(self.asked, limits.depth)
        prices = self._now
        times = prices is not None and prices.corrects
        if self.asked > 0 and times and prices is not None:
            self._unanchored = 0 if prices.anchored else self._unanchored + 1
            if self._unanchored > ANCHOR:
                self.asked = PLAIN
                self._unanchored = 0
        if self.asked > 0:
            self.inner.ready(seqs)
            begin = perf_counter() if times else 0.0
            tree = self.inner.grow(tree, seqs, limits.within(self.asked, self.width))
            self.depth = int(tree.depth.max())
            if (
                prices is not None
                and times
                and self.depth == self.asked
                and self.pace.table is not None
            ):
                table = self.pace.table
                spent = perf_counter() - begin
                prices.observe(
                    self.inner, table.drafted(self.asked, self.width) * table.plain, spent
                )
                if self._corrected(prices):  # what this draft is held to have cost
                    self._lengths = (0, 0)
                    self._reprice(seqs)
        self._began = perf_counter() if times else 0.0
        return tree

    def idle(self) -> None:
        """Nothing is learned from the step, which captures what a draft needs unless drafting is
        off.
        """
        super().idle()
        self._began = 0.0
        self.depth = 0
        if self.asked != PLAIN:
            self.asked = None

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self.asked == PLAIN and not self._began:
            if not self._first:
                self.pace.budget.owe(1.0, 1.0)
                self._behind = None if self._behind is None else self._behind + 1
            return
        prices = self._now
        if self._began and self.pace.table is not None and prices is not None:
            part = "plain" if self.asked == PLAIN else verification(captured.spec)
            seconds = self._verified(tree, captured) * self.pace.table.plain
            prices.observe(part, seconds, perf_counter() - self._began)
            self._began = 0.0
        if self.asked != PLAIN:
            super().update(seqs, tree, verdict, captured)
        if self.prices is None:
            assert captured.target is not None
            self.prices = self.fixed = Predicted(captured.target, counted(captured.target))
            self._sampled_as(seqs)
        if self._first or self.asked is None or self.pace.table is None:  # no decision was made
            return
        self._account(seqs, tree, verdict, captured)

    def _verified(self, tree: Tree, captured: Captures) -> float:
        table = self.pace.table
        assert table is not None
        looks = verification(captured.spec) == "captured"
        return table.verify(tree.size - 1) + (table.look if looks else 0.0)

    def _account(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        """Learn from a step: what it was expected to cost, and what it brought."""
        pace = self.pace
        table = self.pace.table
        tokens = 1.0
        assert table is not None and self.asked is not None
        cost = self._verified(tree, captured)
        if self.asked > 0:
            cost += table.drafted(self.asked, self.width)
            accepted = [
                row for row, live in zip(ranks(tree, verdict), self.live, strict=True) if live
            ]
            levels = table.levels.get(self.width, [])
            nodes = filled(tree, self.depth, levels) if self.depth else []
            pace.acceptance.add(self.asked, self.width, nodes, accepted, kept(pace.stays))
            pace.changed()
            tokens += sum(map(len, accepted)) / max(len(accepted), 1)
            self._drafts += 1
            if self.inner.renews and self._drafts % RENEW == 0:
                self._renew()
        pace.budget.owe(cost, self._slowest_gain(seqs, tokens))

    def _slowest_gain(self, seqs: Sequences, mean: float) -> float:
        """What a step has brought to the row that is behind: the others end earlier, and a batch
        takes as long as it.

        mean: of all rows, which counts where there is one row, or others than before.
        """
        if len(seqs.length) == 1:
            return mean
        new = (seqs.length - seqs.prompt).tolist()
        done = seqs.done.tolist()
        behind = min((n for n, over in zip(new, done, strict=True) if not over), default=None)
        before = self._behind
        self._behind = behind
        return (
            mean if behind is None or before is None or behind <= before else float(behind - before)
        )


def remaining(seqs: Sequences) -> int:
    """The most tokens that any row may still emit."""
    return max(
        ((seqs.prompt + seqs.limit - seqs.length).masked_fill(seqs.done, 0)).tolist(), default=0
    )
