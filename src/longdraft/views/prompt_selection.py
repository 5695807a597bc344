"""Choosing once, after prefill, by what the end of the prompt attends to; and the scores to choose by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sequences import without
from longdraft.core.tree import Tree
from longdraft.models.lm import LM
from longdraft.views.base import Policy, View, pad_rows

OBSERVED = 32  # queries that vote, at most

# (model, tokens [1,N], cache of one row, slots to score) -> {layer: [K,slots]}, of the layers that see everything
Scorer = Callable[[LM, Tensor, KVCache, int], dict[int, Tensor]]


def _again(model: LM, tokens: Tensor, cache: KVCache, tail_start: int, captured: Captures) -> dict[int, Tensor]:
    """Run the tokens from slot `since` to the root once more and commit nothing -> {layer: [K,S]}. taps: of one row."""
    n = int(cache.length[0])
    with cache.reopen(n - tail_start):
        model(Tree.chain(tokens[:, tail_start : n + 1]), cache, captured=captured)
    return {layer: scores[0, 0] for layer, scores in captured.scores.items()}


def obs_window(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """Mean softmax weights of the last queries, of those after `slots` (SnapKV; BudgetDraft sums them).

    The pass runs these queries alone and keeps their mean, so one row of scores is held for a layer.
    """
    first = max(slots, int(cache.length[0]) + 1 - OBSERVED)
    scores = _again(model, tokens, cache, first, Captures(CaptureSpec(rows="mean", of="weights", split=True)))
    return {layer: s[:, :slots] for layer, s in scores.items()}


def last_query_mean_key(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """The last query times each key: over a chunk their mean is the query times the mean key (TriForce)."""
    scores = _again(
        model, tokens, cache, int(cache.length[0]), Captures(CaptureSpec(rows="first", of="logits", split=True))
    )
    return {layer: s[:, :slots] for layer, s in scores.items()}


def last_key(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """The last key, as a stand-in for the query, times each key (BudgetDraft's released evaluation)."""
    n = int(cache.length[0])
    _again(model, tokens, cache, n, Captures())  # the root's key, in scratch
    keys = {layer: cache.read(layer, 0)[0].float() for layer in cache.layers if layer not in model.windows}
    return {layer: (k[:, n : n + 1] * k[:, :slots]).sum(-1) for layer, k in keys.items()}


SCORERS: dict[str, Scorer] = {f.__name__: f for f in (obs_window, last_query_mean_key, last_key)}


class PromptSelection(Policy):
    """Picks are chosen before a row's first draft for each layer and key head, then stay; later slots are all seen.

    A kind says from which slot on all is seen, and which of the slots before it. every: choose again each so many
    rounds (0: never).
    """

    def __init__(self, score: str, every: int = 0):
        self.scorer, self.every = SCORERS[score], every
        self._view: View | None = None
        self._text: tuple[LM, Tensor] | None = None
        # per row: slots [K,P] by layer, none where it sees everything; None: still to be chosen
        self._chosen: list[dict[int, Tensor] | None] = []
        self._tail_start: list[int] = []
        self._rounds = 0

    def tail_start(self, length: int) -> int:
        """The slot of a text of `length` tokens from which on all is seen; 0: the budget covers everything."""
        raise NotImplementedError

    def pick(self, scores: Tensor, length: int) -> Tensor:
        """scores [K,since(length)], the higher the better -> slots [K,P], as many for each head."""
        raise NotImplementedError

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._text, self._rounds, self._view = (model, tokens), 0, None
        self._chosen, self._tail_start = [None] * len(cache.length), [0] * len(cache.length)

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Only the new row's slots are to be chosen and copied."""
        self._text = model, tokens
        self._chosen.append(None)
        self._tail_start.append(0)

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        self._text, known = (model, tokens), self._view is not None and len(self._view.tail_start) == len(self._chosen)
        self._chosen, self._tail_start = without(self._chosen, row), without(self._tail_start, row)
        self._view = self._view.without(row) if self._view is not None and known else None

    def seen(self, lengths: list[int]) -> list[int]:
        return lengths if self._view is None else self._view.seen(lengths)

    def view(self, cache: KVCache) -> View | None:
        if self.every and self._rounds and self._rounds % self.every == 0:
            self._chosen, self._view = [None] * len(self._chosen), None
        self._rounds += 1
        new = [b for b, chosen in enumerate(self._chosen) if chosen is None]
        for b in new:
            self._choose(cache, b)
        if new or self._view is None:
            before, self._view = self._view, self._joined()
            if before is not None and self._view is not None:  # the other rows' copies are as good as they were
                self._view.copies = {place: x for place, x in before.copies.items() if place[1] not in new}
                self._view.copied = {place: x for place, x in before.copied.items() if place[1] not in new}
        return self._view

    def _choose(self, cache: KVCache, b: int) -> None:
        """The choice of row b."""
        assert self._text is not None
        (model, tokens), length = self._text, int(cache.length[b]) + 1  # the root counts: its query is the last one
        tail_start = self.tail_start(length)
        scores = self.scorer(model, tokens[b : b + 1], cache.row(b), tail_start) if tail_start else {}
        self._chosen[b] = {layer: self.pick(s, length) for layer, s in scores.items()}
        self._tail_start[b] = tail_start

    def _joined(self) -> View | None:
        """The rows' choices as a view; None if all rows fit, or all layers have windows of their own."""
        one = next((chosen for chosen in self._chosen if chosen), None)
        if one is None:
            return None
        rows = [chosen or {layer: x[..., :0] for layer, x in one.items()} for chosen in self._chosen]
        indices = [torch.stack(list(row.values())) for row in rows]
        return pad_rows(indices, self._tail_start, indices[0].device, {layer: i for i, layer in enumerate(one)})
