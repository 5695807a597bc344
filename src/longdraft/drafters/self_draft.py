"""Self-speculation: the target drafts for itself under a view of its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from longdraft.core import DraftLimits, Sequences, Tree
from longdraft.drafters.beam_search import beam
from longdraft.drafters.under_view import UnderView
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import InCodes, bytes_read, states_moved, weights_of
from longdraft.views.base import Policy


class SelfDrafter(UnderView):
    """Draft keys and values lie in the scratch slots of the target's cache; verification overwrites them.

    copy: a quantised copy of the target that drafts in its place (QuantSpec sec. 4).
    """

    has_draft_probs = True
    name = "model"

    def __init__(self, target: LM, policy: Policy, widths: Sequence[int], copy: LM | None = None):
        super().__init__(target, policy, widths)
        self.model = copy or target

    def reads(self, seqs: Sequences, depth: int) -> float:
        codes = InCodes(self.policy.coded, self.policy.bits)
        return depth * bytes_read(self.model, seqs.cache, seen=self.policy.seen, codes=codes)

    def least_cost(self, seqs: Sequences) -> float:
        """By the bytes of weights and recurrent states, which a draft reads under any view."""
        least = weights_of(self.model).read(len(seqs.length)) + states_moved(seqs.cache)
        return least / bytes_read(self.target, seqs.cache)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        view = self.look(seqs)
        chain = self.model.backend.chain_drafter(seqs.cache, view)
        whole = chain and partial(chain, tree.tokens[:, 0], 0)
        return beam(lambda t, start: self.model(t, seqs.cache, start, view), tree, self.widths, seqs, limits, whole)
