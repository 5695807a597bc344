"""A pass over more nodes than a backend computes at once, as several passes that each see the nodes
before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.backends.base import Backend
from longdraft.core import PAD, Captures, CaptureSpec, KVCache, KVView, Tree


def in_parts(
    backend: Backend,
    tree: Tree,
    cache: KVCache,
    start: int,
    view: KVView | None,
    captured: Captures,
) -> Tensor:
    """Same result as backend.forward, by passes of at most backend.max_nodes nodes.

    Parents come before children, so the keys that a part's nodes need are in scratch by then.
    """
    spec = captured.spec
    logits = []
    states = {n: [] for n in captured.spec.hidden}
    scores = Scores(spec, tree)
    for begin in range(start, tree.size, backend.max_nodes):
        end = min(begin + backend.max_nodes, tree.size)
        part = Tree(
            tree.tokens[:, :end],
            tree.parent[:, :end],
            tree.depth[:, :end],
            tree.mask[:, :end, :end],
        )
        own = Captures(scores.request(part, begin))
        logits.append(backend.forward(part, cache, begin, view, own))
        scores.add(own.scores)
        for n, state in own.states.items():
            states[n].append(state)
    captured.scores = scores.merged
    captured.states = {n: torch.cat(parts, 1) for n, parts in states.items()}
    return torch.cat(logits, 1)


@dataclass(frozen=True)
class PartSpec(CaptureSpec):
    """The whole pass's request, for the query nodes [B,R] of one part, counted from its first new
    node.
    """

    nodes: Tensor | None = None

    def kept(self, tree: Tree) -> Tensor:
        assert self.nodes is not None
        return self.nodes


class Scores:
    """Scores {layer: [B,R,K|1,S]} of a whole pass's query nodes, merged from those of its parts."""

    def __init__(self, spec: CaptureSpec, tree: Tree):
        self.spec = spec
        self.merged = dict[int, Tensor]()
        self._kept = spec.kept(tree)
        self._averaged = torch.zeros_like(tree.tokens[:, 0])  # nodes of each row

    def request(self, part: Tree, begin: int) -> CaptureSpec:
        """The outputs that the pass over nodes [begin, size) of the part must keep."""
        rows = self.spec.rows
        count = part.size - begin
        if rows in ("all", "mean"):
            self._here = part.parent[:, begin:] != PAD  # [B,W] which nodes count
            index = torch.arange(count, device=self._here.device).expand_as(self._here)
            nodes = torch.where(
                self._here, index, torch.where(self._here, index, 0).amax(1, keepdim=True)
            )
        else:
            # [B,R] which lie in this part
            self._here = (self._kept >= begin) & (self._kept < part.size)
            nodes = (self._kept - begin).clamp(0, count - 1)
            rows = rows if rows is not None and bool(self._here.any()) else None
        return PartSpec(
            rows, self.spec.of, self.spec.split, self.spec.only, self.spec.hidden, nodes
        )

    def add(self, scores: dict[int, Tensor]) -> None:
        """Adds the scores of the part that was requested last. A mean weights each part by its
        number of real nodes.
        """
        count = self._here.sum(1)
        self._averaged += count
        share = (count / self._averaged.clamp(min=1))[:, None, None, None]
        for n, s in scores.items():
            old = self.merged.get(n, s)
            if self.spec.rows == "mean":
                # -inf: beyond the row's root
                mixed = torch.where(s == float("-inf"), s, old + (s - old) * share)
                self.merged[n] = torch.where(share > 0, mixed, old)
            elif self.spec.rows == "all":
                self.merged[n] = torch.cat([old, s], 1) if n in self.merged else s
            else:
                self.merged[n] = torch.where(self._here[..., None, None], s, old)
