"""TokenSwift's partial cache: a fixed number of slots in order of importance."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, KVCache, without
from longdraft.models.lm import LM
from longdraft.views.base import Policy, View


class Partial(Policy):
    """Shows the first `sink` slots, the newest, and the most important others, `budget` in all.

    They are committed slots, and may be fewer. Importance is q.k of the root in the last ranking
    verify pass, per key head, summed over the query heads of its group (TokenSwift eq. 2; a mean of
    scaled logits gives the same order). Each token committed after it replaces the least important
    slot. When new tokens have replaced all slots but the sink, the next verify pass ranks again.
    """

    def __init__(self, budget: int, sink: int = 16):
        self.budget = budget
        self.sink = min(sink, budget - 1)
        self.lasts = self.budget - self.sink
        self._forget()

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._forget()

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add a row, which the next verify pass ranks; the others keep their ranking."""
        if self._stale:
            self._built.append(0)
            self._stale.append(True)
        if self._order:
            self._order.append(self._order[0][..., :0])

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        self._built = without(self._built, row)
        self._stale = without(self._stale, row)
        self._order = without(self._order, row)

    def _forget(self) -> None:
        self._order: list[Tensor] = []  # per row: slots [L,K,budget - sink or fewer], best first
        self._built: list[int] = []  # per row: how many slots the ranking covered
        self._layers: dict[int, int] = {}
        self._stale: list[bool] = []  # per row: whether the next verify pass must rank it

    def captures(self) -> CaptureSpec:
        return self.choosing() if not self._stale or any(self._stale) else CaptureSpec()

    def choosing(self) -> CaptureSpec:
        return CaptureSpec(rows="first", split=True)

    def update(self, cache: KVCache, captured: Captures) -> None:
        lengths = cache.length.tolist()
        if not self._stale:
            self._built = [0] * len(lengths)
            self._stale = [True] * len(lengths)
        if captured.scores and captured.covered is not None:
            table = torch.stack([s[:, 0] for s in captured.scores.values()])  # [L,B,K,S]
            self._layers = {layer: i for i, layer in enumerate(captured.scores)}
            none = table.new_zeros(*table[:, 0, :, :0].shape, dtype=torch.long)
            self._order = self._order or [none] * len(lengths)
            # a row that is done has not committed its root
            covered = torch.minimum(captured.covered, cache.length).tolist()
            for b, n in enumerate(covered):
                if self._stale[b]:
                    ranked = table[:, b, :, self.sink : n]
                    top = ranked.topk(min(self.budget - self.sink, ranked.shape[-1])).indices
                    self._order[b] = top + self.sink
                    self._built[b] = n
        ranked_slots = self.budget - self.sink
        self._stale = [
            n - built >= ranked_slots for n, built in zip(lengths, self._built, strict=True)
        ]

    def seen(self, lengths: list[int]) -> list[int]:
        return [min(n, self.budget) for n in lengths]

    def view(self, cache: KVCache) -> View | None:
        lengths = cache.length.tolist()
        # everything fits (or every layer has a sliding window, and nothing is ranked)
        if not self._order or max(lengths) <= self.budget:
            return None
        tail_start = [
            max(built, n - self.budget + self.sink)
            for built, n in zip(self._built, lengths, strict=True)
        ]
        L, K = self._order[0].shape[:2]
        indices = torch.full((L, len(lengths), K, self.budget), -1, device=cache.length.device)
        for b, (n, start) in enumerate(zip(lengths, tail_start, strict=True)):
            sink = min(self.sink, start)
            kept = self._order[b][..., : self.budget - sink - (n - start)]
            indices[:, b, :, :sink] = torch.arange(sink, device=indices.device)
            indices[:, b, :, sink : sink + kept.shape[-1]] = kept
        return View(indices, cache.length.new_tensor(tail_start), self._layers)
