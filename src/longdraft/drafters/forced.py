"""Tokens that a constraint forces are drafted for nothing, in front of any method."""

from __future__ import annotations

from longdraft.core import Captures, CaptureSpec, DraftLimits, Sampling, Sequences, Tree, Verdict
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined


class Forced(Combined[Drafter]):
    """Where a constraint forces the next tokens of a row, these are its draft; the inner drafter drafts elsewhere.

    A step whose rows all have forced tokens costs the inner drafter nothing. Otherwise it drafts beside them.
    """

    def __init__(self, inner: Drafter):
        self.combine((inner,))
        self.inner = inner
        self.has_draft_probs, self.max_depth, self.name = inner.has_draft_probs, inner.max_depth, inner.name
        self._forced = 0  # how many of the latest draft's first nodes are forced tokens

    def proposed_by(self, node: int) -> str:
        return "constraint" if 0 < node <= self._forced else self.inner.proposed_by(node)

    def captures(self) -> CaptureSpec:
        return self.inner.captures()

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.forecast = self.inner.forecast

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self.forecast = self.inner.forecast

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self._forced = 0
        if not seqs.sampler.constrained or tree.draft_probs is not None:
            return self.inner.grow(tree, seqs, limits)
        forced = [tokens[: limits.depth] for tokens in seqs.sampler.forced(seqs)]
        if not any(forced):
            return self.inner.grow(tree, seqs, limits)
        planted = tree.plant([list(enumerate(tokens)) for tokens in forced])
        self._forced = planted.size - 1
        if all(tokens or done for tokens, done in zip(forced, seqs.done.tolist(), strict=True)):
            self.inner.idle()
            return planted
        return self.inner.grow(planted, seqs, limits.within(width=max(limits.width - 1, 0)))

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.inner.update(seqs, tree, verdict, captured)


def with_forced(drafter: Drafter, sampler: Sampling) -> Drafter:
    """The drafter with Forced in front where a constraint may force tokens. Plain decoding stays plain."""
    return Forced(drafter) if sampler.constrained and type(drafter) is not Drafter else drafter
