"""Several drafters are tried one after the other on the sequence itself; the fastest is kept."""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core import Captures, CaptureSpec, DraftLimits, KVView, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.adaptive_draft import AdaptiveDraft
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined

EXPENSIVE = 0.7  # share of a plain step: drafts that cost more a level gain little even if nearly all are accepted
LEAST = 2  # steps of a trial before it may be given up for an earlier drafter's higher rate


class Auto(Combined[AdaptiveDraft]):
    """One of its drafters is in use at a time, as an AdaptiveDraft: each for a trial, then the fastest for good.

    A trial lasts `rounds` steps. It ends sooner if its drafter turns itself off, or expects a lower rate than one
    tried before. A drafter is not tried if its weights alone make a draft cost nearly as much as a plain step. Trials
    cost most where little is to be decoded, so one drafter is tried per `each` tokens of the longest limit, at least
    one (0: all of them). Between trials there is a step without a draft that captures what the next drafter needs.
    """

    def __init__(self, drafters: Sequence[Drafter], rounds: int = 8, each: int = 0):
        self.drafters = [d if isinstance(d, AdaptiveDraft) else AdaptiveDraft(d) for d in drafters]
        self.rounds, self.each = rounds, each
        self.has_draft_probs = all(d.has_draft_probs for d in drafters)
        self.max_depth = max(d.max_depth for d in drafters)

    def ready(self, seqs: Sequences) -> None:
        self.now.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        """Start all drafters. Plain steps that one of them measures are known to all."""
        super().start(seqs)
        self.waiting, self.tried, self.trying = list(self.drafters), [], True
        longest = int(seqs.limit.max()) if len(seqs.limit) else 0
        self.most = max(1, longest // self.each) if self.each and longest else len(self.drafters)
        self._try_next(seqs)
        self.fresh = False  # the first step drafts nothing anyway
        for d in self.drafters:
            d.share(self.drafters[0])

    def _try_next(self, seqs: Sequences) -> None:
        """Switch to the next drafter that could pay; if there is none, to the best that was tried."""
        while self.waiting and len(self.tried) < self.most:
            drafter = self.waiting.pop(0)
            only = not self.waiting and not self.tried
            if only or not len(seqs.length) or drafter.least_cost(seqs) < EXPENSIVE:
                self.tried.append(drafter)
                return self._switch(drafter)
        self.trying = False
        best = max(self.tried, key=self._rate)
        if best is not self.now:
            self._switch(best)

    def _switch(self, drafter: AdaptiveDraft) -> None:
        self.now, self.steps, self.fresh = drafter, 0, True
        drafter.asked = None  # the next step drafts nothing and is not measured

    def proposed_by(self, node: int) -> str:
        return self.now.proposed_by(node)

    def view_read(self) -> KVView | None:
        return self.now.view_read()

    def captures(self) -> CaptureSpec:
        return self.now.captures()

    def reads(self, seqs: Sequences, depth: int) -> float:
        return self.now.reads(seqs, depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.fresh:
            return tree
        self.steps += 1
        return self.now.grow(tree, seqs, limits)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.fresh = False
        self.now.update(seqs, tree, verdict, captured)
        if self.trying and self._trial_is_over():
            self._try_next(seqs)

    def _trial_is_over(self) -> bool:
        if self.now.pace.off or self.steps >= self.rounds:
            return True
        return self.steps >= LEAST and any(self._rate(self.now) < self._rate(d) for d in self.tried[:-1])

    def _rate(self, drafter: AdaptiveDraft) -> float:
        return drafter.pace.model.best()[0]
