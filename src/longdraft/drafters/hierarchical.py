"""Hierarchical speculation (TriForce): the target under a view drafts, itself sped up by an inner
drafter.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from longdraft.core import DraftLimits, Sequences, Tree
from longdraft.costs.counts import counts_of
from longdraft.costs.passes import Pass
from longdraft.drafters.base import Drafter
from longdraft.drafters.step import speculative_step
from longdraft.drafters.under_view import UnderView
from longdraft.drafters.view_price import HierarchicalPrice
from longdraft.models.lm import LM
from longdraft.views.base import Policy


class Hierarchical(UnderView):
    """Drafts gamma tokens, those that the target would generate under the policy's view, whatever
    the inner drafter is.

    The middle level runs ordinary decoding steps on copies of the rows, inside a rollback of the
    target's cache (TriForce sec. 4.3). It draws with the rows' own noise, so it is lossless with
    respect to the view.
    The inner drafter is updated with the middle level's verdicts only; its caches are rewound to
    what the top level has confirmed. One that indexes generated tokens keeps refused ones, which
    only makes its drafts worse.
    """

    name = "model"

    def __init__(self, target: LM, policy: Policy, inner: Drafter, gamma: int):
        super().__init__(target, policy, [1] * gamma)
        self.inner = inner

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.inner.start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self.inner.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        super().leave(seqs, row)
        self.inner.leave(seqs, row)

    def price(self) -> HierarchicalPrice:
        return HierarchicalPrice(
            max_depth=self.max_depth,
            usual=self.policy.usual,
            counts=counts_of(self.target),
            policy=self.policy,
            widths=self.widths,
            inner=self.inner.price(),
        )

    def to_read(self, seqs: Sequences) -> list[Pass]:
        return self.inner.to_read(seqs)

    def rewind(self, seqs: Sequences) -> None:
        self.inner.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        self.inner.ready(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        left = (seqs.prompt + seqs.limit - seqs.length - 1).masked_fill(seqs.done, 0)
        left = left.clamp(min=0, max=min(self.max_depth, limits.depth))
        middle = replace(seqs, tokens=seqs.tokens.clone(), length=seqs.length.clone(), limit=left)
        # what is generated stays so
        middle.prompt = seqs.prompt
        middle.limit = left + seqs.length - seqs.prompt
        with seqs.cache.rollback():
            view = self.look(seqs)
            while not bool(middle.done.all()):
                speculative_step(self.target, self.inner, middle, view=view)
        self.inner.rewind(seqs)
        tokens, count = middle.tokens_since(seqs.length)
        drafted = torch.arange(tokens.shape[1], device=tokens.device) < count[:, None]
        return tree.add_paths(
            torch.zeros_like(tree.tokens[:, :1]), torch.where(drafted, tokens, -1)[:, None]
        )
