"""Beam search: a tree of the likeliest drafts, or of draws without replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longdraft.core import ChainDraws, DraftLimits, Sequences, Tree
from longdraft.ops import DRAFT, argmax


def beam(
    step: Callable[[Tree, int], Tensor],
    tree: Tree,
    widths: Sequence[int],
    seqs: Sequences,
    limits: DraftLimits,
    chain: Callable[[ChainDraws], Tensor] | None = None,
) -> Tree:
    """The root extended by the nodes of highest cumulative score, widths[i] at depth i+1 (LongSpec
    sec. 3.3).

    step(tree, start) -> logits [B,W,V] of nodes [start, size). chain(draws) -> tokens [B,count], if
    given, drafts a chain (widths [1]*count) in one call. Raises ValueError if the tree has drafts.

    Where the tree keeps draft probabilities, every node gets an equal number of children, drawn
    from its own distribution with noise used in this step alone: this distribution may depend on
    drafts refused before (through a guided view), so the noise that drew them must not be used
    again.
    """
    if tree.size != 1:
        raise ValueError("this drafter starts from the root alone: put it first in a Sequential")
    widths = [min(width, limits.width) for width in list(widths)[: limits.depth]]
    if chain is not None and tree.draft_probs is None and widths and set(widths) == {1}:
        draws = seqs.sampler.chain(len(widths), seqs)
        if draws is not None:
            return Tree.chain(torch.cat([tree.tokens, chain(draws)], 1))
    seed = None if tree.draft_probs is None else (seqs.seed ^ DRAFT) + (seqs.length << 32)
    start = 0
    total = torch.zeros_like(tree.tokens, dtype=torch.float32)
    for width in widths:
        logits = step(tree, start)
        B, W, V = logits.shape
        scores = seqs.sampler.scores(
            logits, tree, seqs, start, seed, summed=tree.draft_probs is None and W * width > 1
        )
        if tree.draft_probs is not None:
            tree = tree.with_draft_probs(start, seqs.sampler.law(logits, tree, seqs, start))
            tokens = scores.topk(min(max(1, width // W), V), -1).indices
            parent = torch.arange(start, start + W, device=tokens.device)[:, None].expand_as(tokens)
            tokens = tokens.reshape(B, -1)
            parent = parent.reshape(B, -1)
        elif W == width == 1:  # a chain needs no normalization
            tokens = argmax(scores)
            parent = torch.full_like(tokens, start)
        else:
            total, flat = (total[..., None] + scores).view(B, W * V).topk(min(width, W * V))
            tokens = flat % V
            parent = start + flat // V
        tree, start = tree.grow(parent, tokens), tree.size
    return tree
