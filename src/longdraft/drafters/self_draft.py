"""Self-speculation: the target drafts for itself under a view of its own KV cache."""

from __future__ import annotations

from functools import partial

from longdraft.core import DraftLimits, Sequences, Tree
from longdraft.drafters.base import UnderView, beam
from longdraft.models.memory_traffic import bytes_read


class SelfDrafter(UnderView):
    """Draft keys and values lie in the scratch slots of the target's cache; verification overwrites them."""

    has_draft_probs = True

    def reads(self, seqs: Sequences, depth: int) -> float:
        return depth * bytes_read(self.target, seqs.cache, seen=self.policy.seen)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        view = self.policy.view(seqs.cache)
        chain = self.target.backend.chain_drafter(seqs.cache, view)
        whole = chain and partial(chain, tree.tokens[:, 0], 0)
        return beam(lambda t, at: self.target(t, seqs.cache, at, view), tree, self.widths, seqs, limits, whole)
