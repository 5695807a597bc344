"""Draft tokens as a tree. A chain is a tree of width 1; plain decoding is a tree of one node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

PAD = -2  # the parent of a padding node, which sees only itself and never matches
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class DraftLimits:
    """The largest numbers of levels and of drafted nodes on a level, below the root."""

    depth: int = UNBOUNDED
    width: int = UNBOUNDED

    def within(self, depth: int = UNBOUNDED, width: int = UNBOUNDED) -> DraftLimits:
        """The stricter of these limits and the given ones."""
        return DraftLimits(min(self.depth, depth), min(self.width, width))


@dataclass(frozen=True)
class Tree:
    """Parents come before children; node 0, the root, is the last committed token.

    tokens, parent, depth [B,T] (parent -1 for the root, PAD for padding); mask [B,T,T]:
    ancestor-or-self; draft_probs [B,T,V]: the distribution that a node's children were drawn from,
    kept only for verify=reject.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    mask: Tensor
    draft_probs: Tensor | None = None

    @staticmethod
    def root(tokens: Tensor) -> Tree:
        """A tree of one node per row: tokens [B]."""
        ones = torch.ones_like(tokens)[:, None]
        return Tree(tokens[:, None], -ones, torch.zeros_like(ones), ones[..., None].bool())

    @staticmethod
    def chain(tokens: Tensor) -> Tree:
        """A chain of tokens [B,T], of which the first is the root."""
        B, T = tokens.shape
        depth = torch.arange(T, device=tokens.device)
        mask = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
        return Tree(tokens, (depth - 1).expand(B, T), depth.expand(B, T), mask.expand(B, T, T))

    def row(self, b: int) -> Tree:
        """The tree of row b alone."""
        row = slice(b, b + 1)
        probs = None if self.draft_probs is None else self.draft_probs[row]
        return Tree(self.tokens[row], self.parent[row], self.depth[row], self.mask[row], probs)

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    @property
    def last(self) -> Tensor:
        """[B] the index of each row's last real node."""
        index = torch.arange(self.size, device=self.tokens.device)
        return (self.parent > PAD).long().mul(index).argmax(1)

    @property
    def widest(self) -> int:
        """The most nodes at one depth below the root, over all rows."""
        levels = torch.where(self.parent >= 0, self.depth, 0)
        widest = 0
        for row in levels.tolist():
            widest = max(widest, *(row.count(depth) for depth in set(row) - {0}), 0)
        return widest

    def within(self, deepest: list[int]) -> Tree:
        """The same tree, where each row's nodes below this depth are padding.

        Nodes keep their indices, by which a drafter knows them.
        """
        most = torch.tensor(deepest, device=self.depth.device)
        cut = self.depth > most[:, None]
        if not bool(cut.any()):
            return self
        alone = torch.eye(self.size, dtype=torch.bool, device=cut.device)
        return replace(
            self,
            parent=self.parent.masked_fill(cut, PAD),
            depth=self.depth.masked_fill(cut, 0),
            mask=torch.where(cut[..., None], alone, self.mask),
        )

    def grow(self, parent: Tensor, tokens: Tensor) -> Tree:
        """Add W nodes to each row.

        parent [B,W]: indices of existing nodes (PAD for padding). tokens [B,W].
        """
        T = self.size
        W = tokens.shape[1]
        real = parent >= 0
        index = parent.clamp(min=0)
        above = self.mask.gather(1, index[..., None].expand(-1, -1, T)) & real[..., None]
        self_only = torch.eye(W, dtype=torch.bool, device=tokens.device).expand(len(tokens), W, W)
        mask = torch.cat([F.pad(self.mask, (0, W)), torch.cat([above, self_only], 2)], 1)
        depth = torch.where(real, self.depth.gather(1, index) + 1, 0)
        return Tree(
            torch.cat([self.tokens, tokens], 1),
            torch.cat([self.parent, parent], 1),
            torch.cat([self.depth, depth], 1),
            mask,
            None if self.draft_probs is None else F.pad(self.draft_probs, (0, 0, 0, W)),
        )

    def add_paths(self, nodes: Tensor, paths: Tensor) -> Tree:
        """Add whole branches: paths [B,N,M] (a negative token ends a path) below `nodes` [B,N]."""
        tree = self
        parent = nodes
        for tokens in paths.unbind(2):
            parent = torch.where(tokens < 0, PAD, parent)
            first = tree.size
            tree = tree.grow(parent, tokens.clamp(min=0))
            below = torch.arange(first, tree.size, device=tokens.device).expand_as(parent)
            parent = torch.where(parent == PAD, PAD, below)
        return tree

    def add_below_root(self, rows: list[list[tuple[int, int]]], width: int = UNBOUNDED) -> Tree:
        """Add a subtree below each row's root.

        rows[b] lists its (parent, token) pairs, parents first. A parent is 0 for the root, or i for
        the row's i-th pair. At each depth only the first `width` pairs are added.
        """
        subtree = self.plant([_narrowed(pairs, width) for pairs in rows])
        if self.size == 1 and self.draft_probs is None:
            return subtree
        return self._beside(subtree)

    def _beside(self, subtree: Tree) -> Tree:
        """This tree's nodes, then those of another tree with the same root."""
        before = self.size - 1  # nodes that come between the root and the others
        parent = subtree.parent[:, 1:]
        below_root = subtree.mask[:, 1:, :1]
        mask = torch.cat([below_root, F.pad(subtree.mask[:, 1:, 1:], (before, 0))], 2)
        added = subtree.size - 1
        return Tree(
            torch.cat([self.tokens, subtree.tokens[:, 1:]], 1),
            torch.cat([self.parent, torch.where(parent > 0, parent + before, parent)], 1),
            torch.cat([self.depth, subtree.depth[:, 1:]], 1),
            torch.cat([F.pad(self.mask, (0, added)), mask], 1),
            None if self.draft_probs is None else F.pad(self.draft_probs, (0, 0, 0, added)),
        )

    def plant(self, rows: list[list[tuple[int, int]]]) -> Tree:
        """The root with a subtree of each row below it, made at once.

        Node i is the row's i-th pair. rows[b]: (parent, token) pairs, parents first; a parent is 0
        for the root, or i for the row's i-th pair.
        """
        most = max(map(len, rows), default=0)
        parents = [[-1, *(p for p, _ in row), *[PAD] * (most - len(row))] for row in rows]
        depths = []
        masks = []
        for parent in parents:
            depth = [0]
            mask = [[True] + [False] * most]
            for i, p in enumerate(parent[1:], 1):
                depth.append(0 if p == PAD else depth[p] + 1)
                mask.append([False] * (most + 1) if p == PAD else mask[p].copy())
                mask[i][i] = True
            depths.append(depth)
            masks.append(mask)
        tokens = [[token for _, token in row] + [0] * (most - len(row)) for row in rows]
        new, parent, depth, mask = (
            torch.tensor(x, device=self.tokens.device) for x in (tokens, parents, depths, masks)
        )
        return Tree(torch.cat([self.tokens[:, :1], new.long()], 1), parent, depth, mask)

    def with_draft_probs(self, start: int, probs: Tensor) -> Tree:
        """The same tree with draft probabilities.

        probs [B,W,V]: the distributions of the children of nodes [start, start+W).
        """
        known = self.draft_probs
        if known is None:
            before = probs.new_zeros(len(probs), start, probs.shape[-1])
        else:
            before = known[:, :start]
        probs = torch.cat([before, probs], 1)
        return replace(self, draft_probs=F.pad(probs, (0, 0, 0, self.size - probs.shape[1])))


def _narrowed(pairs: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """The first `width` pairs of each depth whose parents are kept, with their new numbers."""
    kept: list[tuple[int, int]] = []
    count = Counter[int]()  # pairs kept, by depth
    place = {0: (0, 0)}  # of each kept pair: the depth of its children, its new number
    for i, (parent, token) in enumerate(pairs, 1):
        if parent not in place:
            continue
        depth, number = place[parent]
        if count[depth] < width:
            count[depth] += 1
            kept.append((number, token))
            place[i] = depth + 1, len(kept)
    return kept
