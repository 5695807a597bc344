"""Several drafters tried one after the other on the text itself; the one that measured best goes on."""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters.adaptive.adaptive_draft import AdaptiveDraft
from longdraft.drafters.adaptive.cost_model import ANY
from longdraft.drafters.base import Drafter

ENOUGH, BEHIND = 5, 0.8  # rounds of a trial after which a part that expects this share of another's rate is given up


class Auto(Drafter):
    """One of its parts drafts at a time, each at its own pace: first every one for a trial, then the best for good.

    A trial is `rounds` rounds, cut short where the part finds that no draft of its own pays. A plain step, tapped for
    the next part, stands between two. A part that is a Pace already keeps its own costs.
    """

    def __init__(self, parts: Sequence[Drafter], rounds: int = 16):
        self.parts = [part if isinstance(part, AdaptiveDraft) else AdaptiveDraft(part) for part in parts]
        self.rounds = rounds
        self.has_draft_probs = all(part.has_draft_probs for part in parts)
        self.max_depth = max(part.max_depth for part in parts)

    def rewind(self, seqs: Sequences) -> None:
        for part in self.parts:
            part.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        self.now.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        """All parts: a small model's prefill is no part of its trial. One measures plain steps for all."""
        for part in self.parts:
            part.start(seqs)
        for part in self.parts[1:]:
            part.ledger.plain, part.plan = self.parts[0].ledger.plain, [(1, ANY)]
        self.waiting, self.trying = list(self.parts), True
        self._switch(self.waiting.pop(0))
        self.fresh = False  # the first step drafts nothing anyway

    def enter(self, seqs: Sequences, row: int) -> None:
        for part in self.parts:
            part.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        for part in self.parts:
            part.leave(seqs, row)

    def _switch(self, part: AdaptiveDraft) -> None:
        self.now, self.left, self.fresh = part, self.rounds, True
        part.asked = None  # its own latest round is over: the step at hand drafts nothing

    def captures(self) -> CaptureSpec:
        return self.now.captures()

    def reads(self, seqs: Sequences, depth: int) -> float:
        return self.now.reads(seqs, depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.fresh:
            return tree
        self.left -= 1
        return self.now.grow(tree, seqs, limits)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.fresh = False
        self.now.update(seqs, tree, verdict, captured)
        if not self.trying or (self.left > 0 and not self.now.asleep and not self._hopeless()):
            return
        if self.waiting:
            self._switch(self.waiting.pop(0))
            return
        self.trying = False
        best = max(self.parts, key=self._rate)
        if best is not self.now:
            self._switch(best)

    def _rate(self, part: AdaptiveDraft) -> float:
        return part.ledger.best()[0]

    def _hopeless(self) -> bool:
        """Whether the part at hand has been seen long enough to know that another is far ahead."""
        tried = self.parts[: self.parts.index(self.now)]
        seen = self.rounds - self.left
        return seen >= ENOUGH and any(self._rate(self.now) < BEHIND * self._rate(part) for part in tried)
