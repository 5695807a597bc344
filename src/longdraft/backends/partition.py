"""A pass over more nodes than a backend computes at once, as several passes that each see the nodes before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core import PAD, Captures, CaptureSpec, KVCache, KVView, Tree


def in_parts(
    forward: Callable[..., Tensor],
    size: int,
    tree: Tree,
    cache: KVCache,
    start: int,
    view: KVView | None,
    captured: Captures,
) -> Tensor:
    """What forward(tree, cache, start, view, captured) computes, by passes of at most `size` nodes.

    Parents come before children, so the keys that a part's nodes need are in scratch by then.
    """
    spec, logits, states = captured.spec, [], {n: [] for n in captured.spec.hidden}
    scores = Scores(spec.rows, None if spec.rows is None else spec.kept(tree))
    for begin in range(start, tree.size, size):
        part = Part(tree, begin, min(begin + size, tree.size))
        nodes = scores.nodes(part)
        rows = None if nodes is None else spec.rows
        own = Captures(PartSpec(rows, spec.of, spec.split, spec.only, spec.hidden, nodes))
        logits.append(forward(part.tree, cache, begin, view, own))
        scores.add(part, own.scores)
        for n, found in own.states.items():
            states[n].append(found)
    captured.scores, captured.states = scores.merged, {n: torch.cat(found, 1) for n, found in states.items()}
    return torch.cat(logits, 1)


class Part:
    """Nodes [begin, end) of a tree: the last ones of `tree`, which holds the nodes before them too."""

    def __init__(self, whole: Tree, begin: int, end: int):
        tokens, parent, depth = (x[:, :end] for x in (whole.tokens, whole.parent, whole.depth))
        self.tree, self.begin, self.end = Tree(tokens, parent, depth, whole.mask[:, :end, :end]), begin, end

    def real(self) -> tuple[Tensor, Tensor]:
        """Which of the nodes are real [B,R]; and their indices, with the last real one's in place of padding."""
        real = self.tree.parent[:, self.begin :] != PAD
        place = torch.arange(real.shape[1], device=real.device).expand_as(real)
        last = torch.where(real, place, 0).amax(1, keepdim=True)
        return real, torch.where(real, place, last)


@dataclass(frozen=True)
class PartSpec(CaptureSpec):
    """The whole pass's request, with the query nodes [B,R] given by their index in the part."""

    nodes: Tensor | None = None

    def kept(self, tree: Tree) -> Tensor:
        assert self.nodes is not None
        return self.nodes


class Scores:
    """Scores {layer: [B,R,K|1,S]} of a whole pass's query nodes, merged from those of its parts.

    rows and kept [B,R] are CaptureSpec.rows and CaptureSpec.kept of the whole pass.
    """

    def __init__(self, rows: str | None, kept: Tensor | None):
        self.rows, self.kept, self.merged = rows, kept, {}
        self._weight: Tensor | None = None  # [B] nodes averaged so far

    def nodes(self, part: Part) -> Tensor | None:
        """The part's query nodes [B,R], by their index in the part; None where it has none."""
        if self.kept is None:
            return None
        if self.rows in ("all", "mean"):
            return part.real()[1]
        here = (self.kept >= part.begin) & (self.kept < part.end)
        return (self.kept - part.begin).clamp(0, part.end - part.begin - 1) if bool(here.any()) else None

    def add(self, part: Part, scores: dict[int, Tensor]) -> None:
        if self.kept is None or not scores:
            return
        if self.rows == "mean":
            self._average(part, scores)
        elif self.rows == "all":
            self.merged = {n: torch.cat([self.merged[n], s], 1) if n in self.merged else s for n, s in scores.items()}
        else:
            here = ((self.kept >= part.begin) & (self.kept < part.end))[..., None, None]
            self.merged = {n: torch.where(here, s, self.merged.get(n, s)) for n, s in scores.items()}

    def _average(self, part: Part, scores: dict[int, Tensor]) -> None:
        """Weight each part by its number of real nodes."""
        count = part.real()[0].sum(1)
        before = torch.zeros_like(count) if self._weight is None else self._weight
        self._weight = before + count
        share = (count / self._weight.clamp(min=1))[:, None, None, None]
        for n, s in scores.items():
            old = self.merged.get(n, s)
            mixed = torch.where(s == float("-inf"), s, old + (s - old) * share)  # -inf: beyond the row's root
            self.merged[n] = torch.where(share > 0, mixed, old)
