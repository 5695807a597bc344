"""Passes to be timed, over a cache of arbitrary keys.

The cost of a pass does not depend on the keys' numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from longdraft.core import Captures, CaptureSpec, ChainDraws, KVCache, Sampler, Tree
from longdraft.core.states import ByScan, resumed
from longdraft.costs.counts import pass_over
from longdraft.costs.passes import Pass
from longdraft.models.lm import LM
from longdraft.ops import argmax
from longdraft.views.base import View

ROOM = 160  # slots for the nodes of a pass, beside the committed ones
KEPT = CaptureSpec(rows="mean", of="weights")  # what vegas captures
STARTS = 40  # tokens that a recurrent model reads before its states are taken
LEVEL = 4  # nodes of a level in a tree


@dataclass(frozen=True)
class PassShape:
    """One kind of pass over `rows` rows of `context` committed slots.

    nodes: of each row; in a draft, the tokens of a chain. share: of the context, what a draft's
    view selects (0: the pass is a verification, which reads everything). scored: whether attention
    scores are captured.
    """

    rows: int
    context: int
    nodes: int = 1
    share: float = 0.0
    scored: bool = False

    @property
    def name(self) -> str:
        drafts = f"draft {self.nodes} under {self.share:.0%}"
        if self.share:
            return drafts
        verifies = "plain" if self.nodes == 1 else f"verify {self.nodes}"
        return f"{verifies}, scored" if self.scored else verifies


def passes_of(model: LM, shape: PassShape) -> list[Pass]:
    """The counts of the passes in one call of this shape."""
    lengths = [shape.context] * shape.rows
    if not shape.share:
        spec = KEPT if shape.scored else None
        return [pass_over(model, lengths, shape.nodes, scored=spec)]
    shown = selected(shape)
    return [
        pass_over(model, lengths, 1, seen=lambda all_slots: [shown] * len(all_slots), chained=i > 0)
        for i in range(shape.nodes)
    ]


def selected(shape: PassShape) -> int:
    """Slots that a draft's view selects in each row."""
    return max(1, round(shape.share * shape.context))


class Workload:
    """A cache of `rows` rows with room for `context` slots each, and passes over any part of it.

    Every slot is written, so that it takes separate memory. A recurrent model's states are those of
    a few tokens.
    """

    def __init__(self, model: LM, rows: int, context: int):
        self.model = model
        self.cache = model.new_cache(rows, context + ROOM)
        draws = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, model.vocab, (rows, ROOM), generator=draws).to(model.device)
        self._states: list[ByScan] = [{}] * rows
        if model.architecture.scans:
            for b in range(rows):
                model.prefill(self.tokens[b, :STARTS].tolist(), self.cache.row(b))
                self._states[b] = self.cache.row(b).states_at(STARTS) or {}
        else:
            small = model.new_cache(1, 2)
            model(Tree.root(self.tokens[:1, 0]), small)
            self.cache.allocate(small.shapes, context + ROOM)
        for b in range(rows):
            for layer in self.cache.layers:
                for buffer in self.cache.stored(layer, b):
                    buffer.fill_(0.01 if buffer.is_floating_point() else 60)

    def timed(self, shape: PassShape) -> Callable[[], Any]:
        """A call of the passes of this shape, and of the choice of tokens by their logits."""
        model = self.model
        cache = self.at(shape)
        if not shape.share:
            tree = branching(self.tokens[: shape.rows, : shape.nodes])

            def verify() -> Any:
                self._resume(shape)
                captured = Captures(KEPT if shape.scored else CaptureSpec())
                return argmax(model(tree, cache, captured=captured))

            return verify
        first = self.tokens[: shape.rows, 0].contiguous()
        view = self.view(shape)
        if model.backend.chain_drafter(cache, view) is None:
            root = Tree.root(first)

            def level() -> Any:
                self._resume(shape)
                return [argmax(model(root, cache, view=view)) for _ in range(shape.nodes)]

            return level
        samplers = [Sampler()] * shape.rows
        seeds = torch.zeros_like(first)
        draws = ChainDraws(shape.nodes, samplers, seeds, cache.length + 1)

        def draft() -> Any:
            self._resume(shape)
            chain = model.backend.chain_drafter(cache, view)
            assert chain is not None
            return chain(first, 0, draws)

        return draft

    def at(self, shape: PassShape) -> KVCache:
        """The rows of a shape.

        Their lengths are those of the latest pass: `_resume` sets them.
        """
        cache = self.cache.first(shape.rows)
        cache.length.fill_(shape.context)
        return cache

    def _resume(self, shape: PassShape) -> None:
        self.cache.length[: shape.rows] = shape.context
        if self.model.architecture.scans:
            for b in range(shape.rows):
                row = self.cache.states(b)
                fresh = resumed(shape.context, self._states[b])
                for name, value in vars(fresh).items():
                    setattr(row, name, value)

    def view(self, shape: PassShape) -> View:
        """Slots spread evenly over the context, and all later ones."""
        count = selected(shape)
        slots = torch.arange(count) * shape.context // count
        indices = slots.to(self.model.device).expand(1, shape.rows, count).contiguous()
        return View(indices, torch.full((shape.rows,), shape.context, device=self.model.device))


def branching(tokens: torch.Tensor) -> Tree:
    """tokens [B,N] as a tree in which no path is contiguous.

    A level has up to LEVEL nodes, below those of the level before.
    """
    tree = Tree.root(tokens[:, 0].contiguous())
    for level in tokens[:, 1:].split(LEVEL, 1) if tokens.shape[1] > 1 else ():
        first = max(0, tree.size - LEVEL)
        order = torch.arange(level.shape[1], device=tokens.device).flip(0)
        parent = first + order % (tree.size - first)
        tree = tree.grow(parent.expand(len(tokens), -1), level)
    return tree
