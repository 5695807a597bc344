"""Self-speculation: the target drafts for itself under a view of its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from longdraft.core import Captures, CaptureSpec, DraftLimits, Sequences, Tree, Verdict
from longdraft.drafters.base import Drafter, beam
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import bytes_read
from longdraft.views.base import Policy


class SelfDrafter(Drafter):
    """Draft keys and values lie in the scratch slots of the target's cache; verification overwrites them.

    widths: nodes per level (a chain of gamma tokens is [1] * gamma).
    """

    has_draft_probs = True

    def __init__(self, target: LM, policy: Policy, widths: Sequence[int]):
        self.target, self.policy, self.widths = target, policy, widths
        self.max_depth, self.is_chain = len(widths), set(widths) == {1}

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def start(self, seqs: Sequences) -> None:
        self.policy.start(self.target, seqs.tokens, seqs.cache)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.policy.enter(self.target, seqs.tokens, seqs.cache, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.policy.leave(self.target, seqs.tokens, seqs.cache, row)

    def reads(self, seqs: Sequences, depth: int) -> float:
        return depth * bytes_read(self.target, seqs.cache, seen=self.policy.seen)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        view = self.policy.view(seqs.cache)
        chain = self.target.backend.chain_drafter(seqs.cache, view)
        return beam(
            lambda t, start: self.target(t, seqs.cache, start, view),
            tree,
            self.widths,
            seqs,
            limits,
            chain and partial(chain, tree.tokens[:, 0], 0),
        )

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.policy.update(seqs.cache, captured)
