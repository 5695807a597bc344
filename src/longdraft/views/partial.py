"""TokenSwift's partial cache: a fixed budget, in order of importance."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.sequences import without
from longdraft.models.lm import LM
from longdraft.views.base import Policy, View


class Partial(Policy):
    """Never more than `budget` committed slots: the first `sink`, the newest, and of the rest the most important.

    Importance is q.k of the last verification's root, per key head, summed over the query heads of its group
    (TokenSwift eq. 2; a mean of scaled logits orders the slots alike). Each token committed since takes the place of
    the least important slot. Once they have taken all places but the sink's, the next verification ranks anew.
    """

    def __init__(self, budget: int, sink: int = 16):
        self.budget, self.sink = budget, min(sink, budget - 1)
        self._forget()

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._forget()

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """The next verification ranks the new row; the others keep their order."""
        if self._stale:
            self._built.append(0)
            self._stale.append(True)
        if self._order:
            self._order.append(self._order[0][..., :0])

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        if self._stale:
            self._built, self._stale = without(self._built, row), without(self._stale, row)
        if self._order:
            self._order = without(self._order, row)

    def _forget(self) -> None:
        self._order: list[Tensor] = []  # per row [L,K,budget - sink or fewer]: ranked slots, best first
        self._built: list[int] = []  # per row: how many slots had been ranked
        self._layers: dict[int, int] = {}
        self._stale: list[bool] = []  # per row: whether the next verification is to rank it

    def captures(self) -> CaptureSpec:
        return CaptureSpec(rows="first", split=True) if not self._stale or any(self._stale) else CaptureSpec()

    def update(self, cache: KVCache, captured: Captures) -> None:
        lengths = cache.length.tolist()
        if not self._stale:
            self._built, self._stale = [0] * len(lengths), [True] * len(lengths)
        if captured.scores and captured.covered is not None:
            table = torch.stack([s[:, 0] for s in captured.scores.values()])  # [L,B,K,S]
            self._layers = {layer: i for i, layer in enumerate(captured.scores)}
            none = table.new_zeros(*table[:, 0, :, :0].shape, dtype=torch.long)
            self._order = self._order or [none] * len(lengths)
            covered = torch.minimum(captured.covered, cache.length).tolist()  # a row that is done committed nothing
            for b, n in enumerate(covered):
                if self._stale[b]:
                    ranked = table[:, b, :, self.sink : n]
                    top = ranked.topk(min(self.budget - self.sink, ranked.shape[-1])).indices
                    self._order[b], self._built[b] = top + self.sink, n
        places = self.budget - self.sink
        self._stale = [n - built >= places for n, built in zip(lengths, self._built, strict=True)]

    def seen(self, lengths: list[int]) -> list[int]:
        return [min(n, self.budget) for n in lengths]

    def view(self, cache: KVCache) -> View | None:
        lengths = cache.length.tolist()
        if not self._order or max(lengths) <= self.budget:
            return None  # all of it is seen (or nothing is ranked, where every layer has a window of its own)
        tail_start = [max(built, n - self.budget + self.sink) for built, n in zip(self._built, lengths, strict=True)]
        L, K = self._order[0].shape[:2]
        indices = torch.full((L, len(lengths), K, self.budget), -1, device=cache.length.device)
        for b, (n, at) in enumerate(zip(lengths, tail_start, strict=True)):
            sink = min(self.sink, at)
            kept = self._order[b][..., : self.budget - sink - (n - at)]
            indices[:, b, :, :sink] = torch.arange(sink, device=indices.device)
            indices[:, b, :, sink : sink + kept.shape[-1]] = kept
        return View(indices, cache.length.new_tensor(tail_start), self._layers)
