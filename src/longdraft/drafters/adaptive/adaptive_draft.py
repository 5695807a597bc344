"""Draft depth and width chosen at every step by what drafts have cost and brought so far, down to no drafting."""

from __future__ import annotations

from collections import deque

from longdraft.core import UNBOUNDED, Captures, CaptureSpec, DraftLimits, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.cost_model import ranks
from longdraft.drafters.adaptive.pace import PLAIN, PROBE, Pace
from longdraft.drafters.adaptive.step_costs import Costs, costs_for
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined


class AdaptiveDraft(Combined[Drafter]):
    """Adapts the inner drafter's depth and width to measured speed and turns drafting off while it does not pay.

    Only past steps are considered. The first steps measure drafts of PROBE tokens and plain steps. While drafting is
    off, plain steps capture nothing, and GLANCE tokens are drafted now and then, which lead to a probe if the target
    accepts some. The less drafts promise, the longer it stays off. While it is on, a plain step or another width
    is measured now and then. Each number of rows has measurements of its own (see Pace). costs (default: costs_for the
    target): what a step costs.
    """

    def __init__(self, inner: Drafter, costs: Costs | None = None):
        self.inner, self.drafters, self.given = inner, (inner,), costs
        self.has_draft_probs, self.max_depth = inner.has_draft_probs, inner.max_depth
        self.probe = min(PROBE, inner.max_depth)

    def start(self, seqs: Sequences) -> None:
        self.paces: dict[int, Pace] = {}
        self.plains: dict[int, deque[float]] = {}  # costs of plain steps, as in `paces`
        self.pace = self._pace_for(len(seqs.length))
        self.asked: int | None = None  # depth of the current step; None: it is not measured
        self.costs = self.given
        super().start(seqs)

    def _pace_for(self, rows: int) -> Pace:
        """That of 1, 2, 3 to 4, 5 to 8, ... rows. A new one knows what was accepted with other numbers of rows."""
        size = max(rows - 1, 0).bit_length()
        if size not in self.paces:
            made = self.paces[size] = Pace(self.max_depth, self.probe, self.inner.is_chain)
            if len(self.paces) > 1:
                made.model.learn(self.pace.model)
            made.model.plain = self.plains.setdefault(size, made.model.plain)
        return self.paces[size]

    def share(self, other: AdaptiveDraft) -> None:
        """Measure plain steps together with another drafter of the same target, from now on."""
        self.plains = other.plains
        for size, pace in self.paces.items():
            pace.model.plain = self.plains.setdefault(size, pace.model.plain)

    def enter(self, seqs: Sequences, row: int) -> None:
        """What was measured stays; the next step drafts nothing and is not measured."""
        self.asked = None
        super().enter(seqs, row)

    def captures(self) -> CaptureSpec:
        return CaptureSpec() if self.asked == PLAIN else self.inner.captures()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.costs is None:  # known once a pass has been verified
            return tree
        self.live = (~seqs.done).tolist()
        self.pace = self._pace_for(sum(self.live))
        (self.asked, self.width), self.depth = self.pace.shape(captured=self.asked != PLAIN), 0
        if self.asked > 0:
            self.inner.ready(seqs)  # reading the prompt is not a cost of this step's shape
        self.costs.begin()
        if self.asked > 0:
            tree = self.inner.grow(tree, seqs, limits.within(self.asked, self.width))
            self.depth = int(tree.depth.max())
        return tree

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self.asked != PLAIN:
            super().update(seqs, tree, verdict, captured)
        if self.costs is None:
            assert captured.target is not None
            self.costs = costs_for(captured.target, tree)
        if self.asked is None:  # the first step, or the one after a row has entered
            return
        pace, tokens = self.pace, 1.0
        cost = self.costs.end(self.inner, seqs, tree, self.depth, captured)
        if self.asked == PLAIN:
            pace.plain(cost)
            return
        if self.depth:
            accepted = [row for row, live in zip(ranks(tree, verdict), self.live, strict=True) if live]
            if self.width == UNBOUNDED:
                pace.model.widest = max(pace.model.widest, tree.widest)
            tokens = pace.drafted(self.depth, self.width, accepted, cost)
        pace.owe(cost, tokens)
        if self.asked > 0 and not self.depth:
            pace.ask_again(self.asked, self.width)
