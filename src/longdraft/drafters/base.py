"""A drafter grows a tree. Everything else it may say has a default."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.chain_draws import ChainDraws
from longdraft.core.limits import UNBOUNDED, DraftLimits
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.ops import DRAFT


class Drafter:
    """grow never changes what is committed: it may write to scratch slots and to its own state only.

    keeps_law: children are draws without replacement from a stored law, as verify=reject needs. observe need not see
    every round: some may be left out, if the last one before grow is not.

    max_depth: the deepest level that a draft can have, if that is known. is_chain: unless limited, every draft is a
    chain of max_depth tokens.
    """

    has_draft_probs = False
    max_depth: int = UNBOUNDED
    is_chain: bool = False

    def captures(self) -> CaptureSpec:
        """What the verify pass must leave behind for observe."""
        return CaptureSpec()

    def rewind(self, seqs: Sequences) -> None:
        """Caches of its own forget what is not in the text of seqs: a hierarchy takes back what it had drafted."""

    def ready(self, seqs: Sequences) -> None:
        """What must be read before a draft, and may take long: grow does it too, if it was not asked for before."""

    def start(self, seqs: Sequences) -> None:
        """Called once, after prefill; an engine that rows enter later calls it while there are none."""

    def reads(self, seqs: Sequences, depth: int) -> float:
        """Bytes of weights and keys that the latest draft, so many levels deep, has read: counted, never timed."""
        return 0

    def enter(self, seqs: Sequences, row: int) -> None:
        """Row `row`, the last one, has been prefilled and joins the others, which go on where they were.

        The next round drafts nothing, and observe sees it. By default everything starts anew.
        """
        self.start(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        """Row `row` has left; if it was not the last, the last one has taken its place. seqs: the rows that remain.

        A drafter that overrides this may be asked to draft in the next round: what it learnt of the last rounds must
        still be there, row by row, or it must draft without it.
        """
        self.start(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        """Add nodes to the tree; a tree of one node (no drafts) is fine."""
        return tree

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        """Called after each commit, the first step's (which drafts nothing) included."""


class Sequential(Drafter):
    """Drafters in a row, each growing the tree the one before left. At most one may want taps."""

    def __init__(self, *parts: Drafter):
        self.parts = parts
        self.max_depth = max(p.max_depth for p in parts)
        self.captures()

    def captures(self) -> CaptureSpec:
        wishes = [w for w in (p.captures() for p in self.parts) if w.rows or w.hidden]
        if len(wishes) > 1:
            raise ValueError("two drafters of one tree want taps of the verify pass")
        return wishes[0] if wishes else CaptureSpec()

    def rewind(self, seqs: Sequences) -> None:
        for p in self.parts:
            p.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        for p in self.parts:
            p.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        for p in self.parts:
            p.start(seqs)

    def reads(self, seqs: Sequences, depth: int) -> float:
        return sum(p.reads(seqs, depth) for p in self.parts)

    def enter(self, seqs: Sequences, row: int) -> None:
        for p in self.parts:
            p.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        for p in self.parts:
            p.leave(seqs, row)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        for p in self.parts:
            left = limits.within(width=max(limits.width - tree.widest, 0))
            tree = p.grow(tree, seqs, left)
        return tree

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        for p in self.parts:
            p.update(seqs, tree, verdict, captured)


def beam(
    step: Callable[[Tree, int], Tensor],
    tree: Tree,
    widths: Sequence[int],
    seqs: Sequences,
    limits: DraftLimits,
    chain: Callable[[ChainDraws], Tensor] | None = None,
) -> Tree:
    """Grow from the root by cumulative score, widths[i] nodes at depth i+1 (LongSpec sec. 3.3); a chain is [1]*gamma.

    step(tree, start) -> logits [B,W,V] of nodes [start, size). Where a law is kept, each node gets an equal share of
    its level's width, drawn from its own law, with noise of this round alone: a refused draft may have had a say in
    this round's law (a guided view), so its noise must not draw from that law again.
    chain(draws) -> tokens [B,count] below the root, if given: the same for a chain, in one call.
    """
    if tree.size != 1:
        raise ValueError("a beam starts from the root alone: put it first")
    widths = [min(width, limits.width) for width in list(widths)[: limits.depth]]
    if chain is not None and tree.draft_probs is None and seqs.sampler.bare and widths and set(widths) == {1}:
        drawn = chain(ChainDraws(len(widths), seqs.sampler.temperature, seqs.seed, seqs.length))
        return Tree.chain(torch.cat([tree.tokens, drawn], 1))
    seed = None if tree.draft_probs is None else (seqs.seed ^ DRAFT) + (seqs.length << 32)
    start, total = 0, torch.zeros_like(tree.tokens, dtype=torch.float32)
    for width in widths:
        logits = step(tree, start)
        B, W, V = logits.shape
        scores = seqs.sampler.scores(logits, tree, seqs, start, seed)
        if tree.draft_probs is not None:
            tree = tree.with_draft_probs(start, _law(logits, tree, seqs, start))
            tokens = scores.topk(min(max(1, width // W), V), -1).indices
            parent = torch.arange(start, start + W, device=tokens.device)[:, None].expand_as(tokens)
            tokens, parent = tokens.reshape(B, -1), parent.reshape(B, -1)
        elif W == width == 1:  # a chain needs no normalisation
            tokens = scores.argmax(-1)
            parent = torch.full_like(tokens, start)
        else:
            if seqs.sampler.temperature == 0:
                scores = scores.log_softmax(-1)
            total, flat = (total[..., None] + scores).view(B, W * V).topk(min(width, W * V))
            tokens, parent = flat % V, start + flat // V
        tree, start = tree.grow(parent, tokens), tree.size
    return tree


def _law(logits: Tensor, tree: Tree, seqs: Sequences, start: int) -> Tensor:
    """The distribution [B,W,V] that a node's children are drawn from: the sampler's, applied to the draft's logits."""
    law = seqs.sampler.processed(logits, tree, seqs, start)
    if seqs.sampler.temperature == 0:
        return torch.zeros_like(law).scatter_(-1, law.argmax(-1, keepdim=True), 1.0)
    return law.softmax(-1)
