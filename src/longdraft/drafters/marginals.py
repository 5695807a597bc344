"""Trees from one distribution per depth: the paths whose depths' scores have the greatest sums
(DDTree).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import torch
from torch import Tensor

from longdraft.core import UNBOUNDED, DraftLimits, Sequences, Tree
from longdraft.drafters.vocabulary import DraftVocabulary, known_tokens
from longdraft.ops import argmax

Step = Callable[[Tree, int], Tensor]


@dataclass(frozen=True)
class BestPaths:
    """The `nodes` paths that are likeliest to be what the target says, if its tokens did not depend
    on each other.

    A drafter that gives one distribution per depth (heads, a block) cannot tell what follows one
    token from what follows another at the same depth, so the value of a path is the sum of its
    tokens' log-probabilities. At a temperature these are the probabilities of being drawn given the
    noise that the target will add at their positions, so the best path is what the target will say
    as far as the distributions are the target's. Rules and penalties are applied as to the best
    path, and all paths share the result.
    """

    nodes: int

    def most(self, depth: int, width: int) -> int:
        """How many nodes a tree within these limits has at most."""
        return min(self.nodes, depth * width)

    def add(
        self,
        tree: Tree,
        logits: Tensor,
        seqs: Sequences,
        limits: DraftLimits,
        known: DraftVocabulary | None = None,
    ) -> Tree:
        """The root extended by at most `nodes` nodes; logits [B,D,V] are those of depths 1..D, of
        the known tokens.
        """
        depth = self._depth(tree, logits.shape[1], limits)
        if not depth:
            return tree
        if seqs.sampler.bare:  # no score depends on the path
            chain = Tree.chain(tree.tokens.expand(-1, depth))
            tokens = known_tokens(known)
            scores = seqs.sampler.scores(logits[:, :depth], chain, seqs, tokens=tokens)
            return self._planted(tree, scores, seqs, limits, tokens)
        if known is not None:
            logits = known.spread(logits)
        scores = along_the_best(lambda chain, d: logits[:, d, None], depth, tree, seqs)
        return self._planted(tree, scores, seqs, limits)

    def add_beside(
        self, step: Step, depth: int, tree: Tree, seqs: Sequences, limits: DraftLimits
    ) -> Tree:
        """The same for a drafter that drafts node by node: it drafts a chain of `depth` nodes,
        whose distributions are taken for those of all nodes at their depths. So the nodes beside
        the chain cost no draft.

        step(tree, start) -> logits [B,1,V] of node start, the last one, as for `beam`.
        """
        depth = self._depth(tree, depth, limits)
        return (
            self._planted(tree, along_the_best(step, depth, tree, seqs), seqs, limits)
            if depth
            else tree
        )

    def _depth(self, tree: Tree, most: int, limits: DraftLimits) -> int:
        if tree.size != 1:
            raise ValueError("this drafter can only grow from the root: put it first")
        return max(min(most, self.nodes, limits.depth), 0) if limits.width > 0 else 0

    def _planted(
        self,
        tree: Tree,
        scores: Tensor,
        seqs: Sequences,
        limits: DraftLimits,
        tokens: Tensor | None = None,
    ) -> Tree:
        """tokens [V]: those that the scores are of; None: all."""
        width = min(self.nodes, limits.width, scores.shape[-1])
        best = scores.topk(width, -1)
        # rounding may exceed 0
        values = (best.values - scores.logsumexp(-1, keepdim=True)).clamp(max=0).tolist()
        best_tokens = best.indices if tokens is None else tokens[best.indices]
        rows = zip(values, best_tokens.tolist(), seqs.done.tolist(), strict=True)
        return tree.plant([[] if done else self._pairs(v, ids, width) for v, ids, done in rows])

    def _pairs(
        self, values: list[list[float]], tokens: list[list[int]], width: int
    ) -> list[tuple[int, int]]:
        return [
            (parent, tokens[d][rank]) for parent, d, rank in best_paths(values, self.nodes, width)
        ]


def best_paths(
    values: Sequence[Sequence[float]], nodes: int, width: int = UNBOUNDED
) -> list[tuple[int, int, int]]:
    """The `nodes` paths of greatest value, best first, of which at most `width` have the same
    depth.

    values[d] are the log-probabilities of the ranks at depth d+1, in descending order; a path's
    value is the sum over its depths, and a path that is impossible (-inf) is left out. -> triples
    (parent, d, rank) of each path's last node: parent 0 is the root, i the i-th triple. As no path
    is worth more than its beginning or than the same path with a better rank at its end, the heap
    holds only the next rank and the first child of each path that was taken.
    """
    chosen: list[tuple[int, int, int]] = []
    # of the root and each path; paths of each depth
    costs = [0.0]
    taken = [0] * len(values)
    heap = [(-values[0][0], 0, 0, 0)]
    while heap and len(chosen) < nodes:
        cost, d, parent, rank = heappop(heap)
        if cost == inf:
            break
        if taken[d] == width:
            continue
        taken[d] += 1
        chosen.append((parent, d, rank))
        costs.append(cost)
        if rank + 1 < len(values[d]):
            heappush(heap, (costs[parent] - values[d][rank + 1], d, parent, rank + 1))
        if d + 1 < len(values):
            heappush(heap, (cost - values[d + 1][0], d + 1, len(chosen), 0))
    return chosen


def along_the_best(step: Step, depth: int, tree: Tree, seqs: Sequences) -> Tensor:
    """The sampler's scores [B,D,V] at depths 1..D, where every node but the root is the best token
    after its parent.

    step(chain, start) -> logits [B,1,V] of the chain's last node. Rules and penalties are applied
    as to this path.
    """
    chain = tree
    levels = []
    for d in range(depth):
        if d:
            chain = chain.grow(torch.full_like(tree.tokens, d - 1), argmax(levels[-1]))
        levels.append(seqs.sampler.scores(step(chain, d), chain, seqs, d))
    return torch.cat(levels, 1)
