"""Self-speculation: the target drafts for itself under a view of its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from longdraft.core import DraftLimits, Sequences, Tree
from longdraft.costs.counts import counts_of
from longdraft.drafters.beam_search import beam
from longdraft.drafters.under_view import UnderView
from longdraft.drafters.view_price import SelfDraftPrice
from longdraft.models.lm import LM
from longdraft.views.base import Policy

# the share of a view's acceptance that a copy in this many bits keeps
COPIED = {
    "int8": 0.97,
    "int4": 0.85,
}


class SelfDrafter(UnderView):
    """Draft keys and values lie in the scratch slots of the target's cache; verification overwrites
    them.

    copy: a quantized copy of the target that drafts in its place (QuantSpec sec. 4).
    """

    has_draft_probs = True
    name = "model"

    def __init__(self, target: LM, policy: Policy, widths: Sequence[int], copy: LM | None = None):
        super().__init__(target, policy, widths)
        self.model = copy or target
        # of the view's acceptance
        self.share = COPIED.get(self.model.weights or "", 1.0) if copy is not None else 1.0

    def price(self) -> SelfDraftPrice:
        greedy, sampled = self.policy.usual
        return SelfDraftPrice(
            max_depth=self.max_depth,
            usual=(self.share * greedy, self.share * sampled),
            counts=counts_of(self.model),
            policy=self.policy,
            widths=self.widths,
        )

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        view = self.look(seqs)
        chain = self.model.backend.chain_drafter(seqs.cache, view)
        whole = chain and partial(chain, tree.tokens[:, 0], 0)
        return beam(
            lambda t, start: self.model(t, seqs.cache, start, view),
            tree,
            self.widths,
            seqs,
            limits,
            whole,
        )
