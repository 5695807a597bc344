"""Draft depth and width chosen at every step by what drafts have cost and brought so far, down to no drafting."""

from __future__ import annotations

from math import ceil

from longdraft.core import UNBOUNDED, Captures, CaptureSpec, DraftLimits, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.cost_model import CostModel, median, ranks
from longdraft.drafters.adaptive.step_costs import Costs, costs_for
from longdraft.drafters.base import Combined, Drafter

# PROBE, OFF and GLANCE are set by benchmarks/adaptive_simulation.py (docs/log.md); the others were not varied there.
PROBE = 4  # tokens drafted to test whether drafting pays: drafts of one token seldom pay for a step's fixed costs
GLANCE = 1  # tokens drafted to test whether drafting that was turned off is worth a probe
OFF = 4  # drafting stays off for at least this many times what it has cost so far, in plain steps
HOPELESS = 4  # longer if even fully accepted drafts would not pay: nothing but a change of costs could help
MOST = 256  # plain steps: the largest cost that counts, so that drafting is tried again in the end
RECHECK = 64  # drafting steps between measurements of a plain step or of another width
PLAIN, CAPTURE = 0, -1  # in place of a depth: no draft; no draft, but captures for the next one


class AdaptiveDraft(Combined):
    """Adapts the inner drafter's depth and width to measured speed and turns drafting off while it does not pay.

    Only past steps are considered. The first steps measure drafts of PROBE tokens and plain steps. While drafting is
    off, plain steps capture nothing, and GLANCE tokens are drafted now and then, which lead to a probe if the target
    accepts some. The less drafts promise, the longer it stays off. While it is on, a plain step or another width
    is measured now and then. costs (default: costs_for the target): what a step costs.
    """

    def __init__(self, inner: Drafter, costs: Costs | None = None):
        self.inner, self.drafters, self.given = inner, (inner,), costs
        self.has_draft_probs, self.max_depth = inner.has_draft_probs, inner.max_depth
        self.probe = min(PROBE, inner.max_depth)

    def start(self, seqs: Sequences) -> None:
        self.model = CostModel(self.max_depth)
        first = self.probe if self.inner.is_chain else 1  # a deep tree could cost many plain steps
        probes = [(first, UNBOUNDED), (self.probe, 1)]
        self.plan = [(PLAIN, 1), (PLAIN, 1), (CAPTURE, 1), *probes]  # depths and widths of the next steps
        self.off = 0  # plain steps until the next glance
        self.pause = 0  # steps for which drafting was last turned off; no later pause is shorter until it is on again
        self.debt = 0.0  # what drafting has cost so far beyond plain decoding of the same tokens
        self.drafting = 0  # drafting steps so far
        self.glancing = False  # whether the next draft is a glance
        self.asked: int | None = None  # depth of the current step; None: it is not measured
        self.costs = self.given
        super().start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """The cost model stays; the next step drafts nothing and is not measured."""
        self.asked = None
        super().enter(seqs, row)

    def captures(self) -> CaptureSpec:
        return CaptureSpec() if self.asked == PLAIN else self.inner.captures()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.costs is None:  # known once a pass has been verified
            return tree
        (self.asked, self.width), self.depth = self._shape(), 0
        if self.asked > 0:
            self.inner.ready(seqs)  # reading the prompt is not a cost of this step's shape
        self.costs.begin()
        if self.asked > 0:
            self.live = (~seqs.done).tolist()
            tree = self.inner.grow(tree, seqs, limits.within(self.asked, self.width))
            self.depth = int(tree.depth.max())
        return tree

    def _shape(self) -> tuple[int, int]:
        """Depth and width of the next draft."""
        if self.off:
            self.off -= 1
            return PLAIN, UNBOUNDED
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

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self.asked != PLAIN:
            super().update(seqs, tree, verdict, captured)
        if self.costs is None:
            assert captured.target is not None
            self.costs = costs_for(captured.target, tree)
        if self.asked is None:  # the first step, or the one after a row has entered
            return
        cost, tokens = self.costs.end(self.inner, seqs, tree, self.depth, captured), 1.0
        if self.asked == PLAIN:
            self.model.plain.append(cost)
        elif self.depth:
            found = [row for row, live in zip(ranks(tree, verdict), self.live, strict=True) if live]
            tokens += sum(map(len, found)) / max(len(found), 1)
            if self.width == UNBOUNDED:
                self.model.widest = max(self.model.widest, tree.widest)
            self.model.add(self.depth, self.width, found, cost)
            if self.glancing and tokens > 1 and self.depth < self.probe:
                self.plan.insert(0, (self.probe, self.width))
            self.glancing = False
        if self.model.plain and self.asked != PLAIN:
            self.debt = min(max(self.debt + cost / median(self.model.plain) - tokens, 0.0), MOST)
        if self.asked > 0 and not self.depth and self.debt < 1:
            self.plan.insert(0, (self.asked, self.width))  # nothing was found to draft: ask again
