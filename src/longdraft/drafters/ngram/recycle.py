"""Token Recycling: drafts from the tokens that the latest verification ranked highest after each
token.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import torch
from torch import Tensor

from longdraft.core import PAD, Captures, DraftLimits, Sequences, Tree, Verdict, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.price import TemplatePrice

RANKS = 8
DEPTH = 6
# Worth of a child of each rank relative to its parent, chosen so that the template resembles the
# published tree: 80
# nodes fall into levels of 8, 21, 25, 19, 6, 1; the published tree of 80, found by search, has 8,
# 21, 25, 15, 8, 3.
WORTH = [0.35 / (rank + 1) ** 2.3 for rank in range(RANKS)]


def template(nodes: int) -> list[tuple[int, int]]:
    """The `nodes` nodes of greatest worth: pairs (parent, rank); parent 0 is the root, i the i-th
    pair.
    """
    chosen: list[tuple[int, int]] = []
    heap = [(-worth, 1, 0, rank) for rank, worth in enumerate(WORTH)]
    heapify(heap)
    while len(chosen) < nodes:
        loss, depth, parent, rank = heappop(heap)
        chosen.append((parent, rank))
        if depth < DEPTH:
            for r, worth in enumerate(WORTH):
                heappush(heap, (loss * worth, depth + 1, len(chosen), r))
    return chosen


class Recycle(Drafter):
    """table [B,V,8]: for each token, the tokens that the latest logits after it ranked highest,
    best first (-1: none).

    Drafts fill a fixed template of nodes: a node's token is its parent token's entry of the
    template's rank (Token Recycling sec. 3). Every verified node, refused or not, updates its
    token's entry; if a token occurs at several nodes, an accepted one decides. Tokens not verified
    yet hold what followed them in the prompt, latest first (in the paper: nothing).
    """

    name = "n-grams"

    def __init__(self, nodes: int = 24):
        self.template = template(nodes)
        self.max_depth = DEPTH
        depths = [0]
        for parent, _ in self.template:
            depths.append(depths[parent] + 1)
        self.sizes = [depths.count(d) for d in range(1, DEPTH + 1)]  # nodes of each level

    def start(self, seqs: Sequences) -> None:
        self.table: Tensor | None = (
            None  # made at the first update: the logits give the vocabulary's size
        )
        self.prompts = [seqs.tokens[b, :n].tolist() for b, n in enumerate(seqs.prompt.tolist())]

    def enter(self, seqs: Sequences, row: int) -> None:
        self.prompts.append(seqs.tokens[row, : int(seqs.prompt[row])].tolist())
        if self.table is not None:
            new = _followers(self.prompts[row], self.table.shape[1]).to(self.table.device)
            self.table = torch.cat([self.table, new[None]])

    def leave(self, seqs: Sequences, row: int) -> None:
        self.prompts = without(self.prompts, row)
        self.table = None if self.table is None else without(self.table, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        assert captured.logits is not None
        B, _, V = captured.logits.shape
        if self.table is None:
            self.table = torch.stack([_followers(prompt, V) for prompt in self.prompts]).to(
                tree.tokens.device
            )
        ranks = min(RANKS, V)
        tokens = tree.tokens.tolist()
        padding = (tree.parent == PAD).tolist()
        paths = verdict.path.tolist()
        counts = verdict.count.tolist()
        nodes = []
        rows = []
        for b in range(B):
            latest = {token: n for n, token in enumerate(tokens[b]) if not padding[b][n]}
            latest |= {tokens[b][n]: n for n in paths[b][: counts[b]]}
            rows += [b] * len(latest)
            nodes += latest.values()
        best = captured.logits[rows, nodes].topk(ranks).indices
        self.table[rows, tree.tokens[rows, nodes], :ranks] = best.to(self.table.dtype)

    def price(self) -> TemplatePrice:
        return TemplatePrice(max_depth=self.max_depth, sizes=self.sizes)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.table is None or limits.depth == 0:
            return tree
        roots = tree.tokens[:, 0].tolist()
        done = seqs.done.tolist()
        known = [
            [] if done[b] else self._fill(b, root, limits.depth) for b, root in enumerate(roots)
        ]
        return tree.add_below_root(known, limits.width)

    def _fill(self, b: int, root: int, room: int) -> list[tuple[int, int]]:
        """The template with this row's tokens, without nodes for which the table has no token."""
        assert self.table is not None
        entries: dict[int, list[int]] = {}
        # template node -> (its index in `filled`, token, depth)
        place = {0: (0, root, 0)}
        filled = []
        for i, (parent, rank) in enumerate(self.template, 1):
            if parent not in place:
                continue
            number, token, depth = place[parent]
            if token not in entries:
                entries[token] = self.table[b, token].tolist()
            child = entries[token][rank]
            if child >= 0 and depth < room:
                filled.append((number, child))
                place[i] = (len(filled), child, depth + 1)
        return filled


def _followers(prompt: list[int], vocab: int) -> Tensor:
    """[V,8] int32: for each token, the distinct tokens that followed it in the prompt, latest
    first; -1 pads.
    """
    after: dict[int, dict[int, None]] = {}
    for token, following in zip(prompt[-2::-1], prompt[:0:-1], strict=True):
        seen = after.setdefault(token, {})
        if len(seen) < RANKS:
            seen[following] = None
    table = torch.full((vocab, RANKS), -1, dtype=torch.int32)
    for token, seen in after.items():
        table[token, : len(seen)] = torch.tensor(list(seen), dtype=torch.int32)
    return table
