"""Drafts the tokens that a constraint forces, in front of any method: they cost no pass of a
drafter.
"""

from __future__ import annotations

from longdraft.core import Captures, CaptureSpec, DraftLimits, Sampling, Sequences, Tree, Verdict
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined


class Forced(Combined[Drafter]):
    """Drafts the next tokens of a row where a constraint forces them; elsewhere the inner drafter
    drafts.

    A step in which all rows have forced tokens costs the inner drafter nothing.
    """

    def __init__(self, inner: Drafter):
        self.combine((inner,))
        self.inner = inner
        self.has_draft_probs = inner.has_draft_probs
        self.max_depth = inner.max_depth
        self.name = inner.name
        self._forced = 0  # how many nodes of the first row's latest draft are forced tokens

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
        chains = [list(enumerate(tokens)) for tokens in forced]
        if all(tokens or done for tokens, done in zip(forced, seqs.done.tolist(), strict=True)):
            tree = tree.plant(chains)
        else:
            tree = _with_chains(self.inner.grow(tree, seqs, limits), chains)
        self.inner.idle()
        self._forced = len(chains[0])
        return tree

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.inner.update(seqs, tree, verdict, captured)


def _with_chains(tree: Tree, chains: list[list[tuple[int, int]]]) -> Tree:
    """The tree with these chains instead of what was drafted in rows that have one."""
    drafted = [
        list(zip(*row, strict=True))[1:]
        for row in zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True)
    ]
    return tree.plant([chain or row for chain, row in zip(chains, drafted, strict=True)])


def with_forced(drafter: Drafter, sampler: Sampling) -> Drafter:
    """The drafter with Forced in front where a constraint may force tokens. Plain decoding stays
    plain.
    """
    return Forced(drafter) if sampler.constrained and not drafter.never_drafts else drafter
