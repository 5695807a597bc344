"""TriForce: a draft that is itself drafted and verified, on the target under a view."""

from __future__ import annotations

from dataclasses import replace

import torch

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters.base import Drafter
from longdraft.drafters.costs import bytes_read
from longdraft.drafters.step import speculative_step
from longdraft.models.lm import LM
from longdraft.views.base import Policy


class Hierarchical(Drafter):
    """Up to gamma tokens, each what the target says under the policy's view: the inner drafts change only their cost.

    The middle level is the same round as the top's, on copies of the rows and inside a rollback of the target's cache
    (TriForce sec. 4.3). It draws with the rows' own noise, so it is lossless in itself, and the top level is as ever.
    The inner drafter is told of the middle's verdicts and never of the top's; its caches are taken back to what the top
    has confirmed, and it catches up from there. One that indexes the text itself would keep what the top refuses: worse
    drafts, the same text.
    """

    is_chain = True

    def __init__(self, target: LM, policy: Policy, inner: Drafter, gamma: int):
        self.target, self.policy, self.inner, self.max_depth = target, policy, inner, gamma
        self._levels: list[int] = []  # how deep the inner drafts of the latest draft were

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def start(self, seqs: Sequences) -> None:
        self.policy.start(self.target, seqs.tokens, seqs.cache)
        self.inner.start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.policy.enter(self.target, seqs.tokens, seqs.cache, row)
        self.inner.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.policy.leave(self.target, seqs.tokens, seqs.cache, row)
        self.inner.leave(seqs, row)

    def reads(self, seqs: Sequences, depth: int) -> float:
        """A pass of the middle level for each inner draft, and what the inner drafts read."""
        middle = len(self._levels) * bytes_read(self.target, seqs.cache, seen=self.policy.seen)
        return middle + self.inner.reads(seqs, sum(self._levels))

    def rewind(self, seqs: Sequences) -> None:
        self.inner.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        self.inner.ready(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        left = (
            (seqs.prompt + seqs.limit - seqs.length - 1)
            .clamp(min=0, max=min(self.max_depth, limits.depth))
            .masked_fill(seqs.done, 0)
        )
        middle = replace(seqs, tokens=seqs.tokens.clone(), length=seqs.length.clone(), limit=left)
        with seqs.cache.rollback():
            view = self.policy.view(seqs.cache)
            self._levels = []
            while not bool(middle.done.all()):
                done = speculative_step(self.target, self.inner, middle, view=view)
                self._levels.append(int(done.tree.depth.max()))
        self.inner.rewind(seqs)
        tokens, count = middle.tokens_since(seqs.length)
        drafted = torch.arange(tokens.shape[1], device=tokens.device) < count[:, None]
        return tree.add_paths(torch.zeros_like(tree.tokens[:, :1]), torch.where(drafted, tokens, -1)[:, None])

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.policy.update(seqs.cache, captured)
