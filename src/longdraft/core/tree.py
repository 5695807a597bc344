"""Draft tokens as a tree. A chain is a tree of width 1; plain decoding is a tree of one node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

PAD = -2  # the parent of a padding node, which sees only itself and never matches


@dataclass(frozen=True)
class Tree:
    """Parents come before children; node 0, the root, is the last committed token.

    tokens, parent, depth [B,T] (parent -1 for the root, PAD for padding); mask [B,T,T]: ancestor-or-self;
    draft_probs [B,T,V]: the distribution that a node's children were drawn from, kept only for verify=reject.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    mask: Tensor
    draft_probs: Tensor | None = None

    @staticmethod
    def root(tokens: Tensor) -> Tree:
        """A tree of one node per row: tokens [B]."""
        one = torch.ones_like(tokens)[:, None]
        return Tree(tokens[:, None], -one, torch.zeros_like(one), one[..., None].bool())

    @staticmethod
    def chain(tokens: Tensor) -> Tree:
        """A chain of tokens [B,T], of which the first is the root."""
        B, T = tokens.shape
        at = torch.arange(T, device=tokens.device)
        mask = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
        return Tree(tokens, (at - 1).expand(B, T), at.expand(B, T), mask.expand(B, T, T))

    def row(self, b: int) -> Tree:
        """The tree of row b alone."""
        tensors = (self.tokens, self.parent, self.depth, self.mask, self.draft_probs)
        return Tree(*(None if x is None else x[b : b + 1] for x in tensors))  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    @property
    def last(self) -> Tensor:
        """[B] the index of each row's last real node."""
        return (self.parent > PAD).long().mul(torch.arange(self.size, device=self.tokens.device)).argmax(1)

    @property
    def widest(self) -> int:
        """The most nodes at one depth below the root, over all rows."""
        levels = torch.where(self.parent >= 0, self.depth, 0)
        return max((row.count(d) for row in levels.tolist() for d in set(row) - {0}), default=0)

    def grow(self, parent: Tensor, tokens: Tensor) -> Tree:
        """Add W nodes to each row: parent [B,W] indices of existing nodes (PAD for padding), tokens [B,W]."""
        T, W = self.size, tokens.shape[1]
        real, at = parent >= 0, parent.clamp(min=0)
        above = self.mask.gather(1, at[..., None].expand(-1, -1, T)) & real[..., None]
        self_only = torch.eye(W, dtype=torch.bool, device=tokens.device).expand(len(tokens), W, W)
        mask = torch.cat([F.pad(self.mask, (0, W)), torch.cat([above, self_only], 2)], 1)
        depth = torch.where(real, self.depth.gather(1, at) + 1, 0)
        return Tree(
            torch.cat([self.tokens, tokens], 1),
            torch.cat([self.parent, parent], 1),
            torch.cat([self.depth, depth], 1),
            mask,
            None if self.draft_probs is None else F.pad(self.draft_probs, (0, 0, 0, W)),
        )

    def add_paths(self, at: Tensor, paths: Tensor) -> Tree:
        """Add whole branches: paths [B,N,M] (a negative token ends a path) below the nodes at [B,N]."""
        tree, parent = self, at
        for tokens in paths.unbind(2):
            parent = torch.where(tokens < 0, PAD, parent)
            first = tree.size
            tree = tree.grow(parent, tokens.clamp(min=0))
            below = torch.arange(first, tree.size, device=tokens.device).expand_as(parent)
            parent = torch.where(parent == PAD, PAD, below)
        return tree

    def add_below_root(self, rows: list[list[tuple[int, int]]], width: int = 1 << 30) -> Tree:
        """Add a subtree below each row's root: rows[b] lists its (parent, token) pairs, parents first.

        A parent is 0 for the root, or i for the row's i-th pair. At each depth only the first `width` pairs are added.
        """
        tree, rows = self, [_narrowed(pairs, width) for pairs in rows]
        depths = [[0] for _ in rows]
        for depth, pairs in zip(depths, rows, strict=True):
            for parent, _ in pairs:
                depth.append(depth[parent] + 1)
        nodes = [[0] * len(depth) for depth in depths]  # the node that each pair of a row becomes
        for level in range(1, max(map(max, depths)) + 1):
            new = [[i for i, d in enumerate(depth) if d == level] for depth in depths]
            most, table = max(map(len, new)), []
            for at, pairs, these in zip(nodes, rows, new, strict=True):
                added = [(at[parent], token) for parent, token in (pairs[i - 1] for i in these)]
                table.append(added + [(PAD, 0)] * (most - len(these)))
                for n, i in enumerate(these):
                    at[i] = tree.size + n
            columns = torch.tensor(table, device=self.tokens.device)
            tree = tree.grow(columns[..., 0], columns[..., 1])
        return tree

    def with_draft_probs(self, start: int, probs: Tensor) -> Tree:
        """The same tree, with probs [B,W,V] as the distributions of the children of nodes [start, start+W)."""
        known = self.draft_probs
        before = probs.new_zeros(len(probs), start, probs.shape[-1]) if known is None else known[:, :start]
        probs = torch.cat([before, probs], 1)
        return replace(self, draft_probs=F.pad(probs, (0, 0, 0, self.size - probs.shape[1])))


def _narrowed(pairs: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """At each depth the first `width` pairs whose parents are kept, with their parents renumbered."""
    number, depth, count, kept = {0: 0}, [0], [0] * (len(pairs) + 2), []
    for i, (parent, token) in enumerate(pairs, 1):
        depth.append(depth[parent] + 1)
        if parent in number and count[depth[i]] < width:
            count[depth[i]] += 1
            kept.append((number[parent], token))
            number[i] = len(kept)
    return kept
