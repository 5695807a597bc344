"""Trees from one distribution per depth: the paths whose depths' scores have the greatest sums (DDTree)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import torch
from torch import Tensor

from longdraft.core import UNBOUNDED, DraftLimits, Sequences, Tree


@dataclass(frozen=True)
class BestPaths:
    """The `nodes` paths that are likeliest to be what the target says, if its tokens did not depend on each other.

    A drafter that gives one distribution per depth (heads, a block) cannot tell what follows one token from what
    follows another at the same depth, so the value of a path is the sum of its tokens' log-probabilities. At a
    temperature these are the probabilities of being drawn given the noise that the target will add.
    """

    nodes: int

    def add(self, tree: Tree, logits: Tensor, seqs: Sequences, limits: DraftLimits) -> Tree:
        """The root extended by at most `nodes` nodes; logits [B,D,V] are those of depths 1..D."""
        if tree.size != 1:
            raise ValueError("this drafter can only grow from the root: put it first")
        depth, width = min(logits.shape[1], limits.depth), min(self.nodes, limits.width, logits.shape[-1])
        if depth < 1 or width < 1:
            return tree
        scores = depth_scores(logits[:, :depth], tree, seqs)
        best = scores.topk(width, -1)
        values = (best.values - scores.logsumexp(-1, keepdim=True)).clamp(max=0).tolist()  # rounding may exceed 0
        rows = zip(values, best.indices.tolist(), seqs.done.tolist(), strict=True)
        return tree.plant([[] if done else self._pairs(v, tokens, width) for v, tokens, done in rows])

    def _pairs(self, values: list[list[float]], tokens: list[list[int]], width: int) -> list[tuple[int, int]]:
        return [(parent, tokens[d][rank]) for parent, d, rank in best_paths(values, self.nodes, width)]


def best_paths(values: Sequence[Sequence[float]], nodes: int, width: int = UNBOUNDED) -> list[tuple[int, int, int]]:
    """The `nodes` paths of greatest value, best first, of which at most `width` have the same depth.

    values[d] are the log-probabilities of the ranks at depth d+1, in descending order; a path's value is the sum over
    its depths, and a path that is impossible (-inf) is left out. -> triples (parent, d, rank) of each path's last node:
    parent 0 is the root, i the i-th triple. As no path is worth more than its beginning or than the same path with a
    better rank at its end, the heap holds only the next rank and the first child of each path that was taken.
    """
    found: list[tuple[int, int, int]] = []
    costs, taken = [0.0], [0] * len(values)  # of the root and each path; paths of each depth
    heap = [(-values[0][0], 0, 0, 0)]
    while heap and len(found) < nodes:
        cost, d, parent, rank = heappop(heap)
        if cost == inf:
            break
        if taken[d] == width:
            continue
        taken[d] += 1
        found.append((parent, d, rank))
        costs.append(cost)
        if rank + 1 < len(values[d]):
            heappush(heap, (costs[parent] - values[d][rank + 1], d, parent, rank + 1))
        if d + 1 < len(values):
            heappush(heap, (cost - values[d + 1][0], d + 1, len(found), 0))
    return found


def depth_scores(logits: Tensor, tree: Tree, seqs: Sequences) -> Tensor:
    """The sampler's scores [B,D,V] of logits [B,D,V] at depths 1..D, with the noise of each depth's position.

    So the best token of every depth is what the target will say, as far as the distributions are the target's. Rules
    and penalties are applied as to the path of the best tokens, and all paths share the result.
    """
    depths = logits.shape[1]
    if seqs.sampler.bare:  # no score depends on the path
        return seqs.sampler.scores(logits, Tree.chain(tree.tokens.expand(-1, depths)), seqs)
    chain, found = tree, []
    for d, level in enumerate(logits.split(1, 1)):
        found.append(seqs.sampler.scores(level, chain, seqs, d))
        chain = chain.grow(torch.full_like(tree.tokens, d), found[-1].argmax(-1))
    return torch.cat(found, 1)
