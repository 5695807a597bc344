"""StreamingLLM: the first and the latest slots."""

from __future__ import annotations

import torch

from longdraft.core.cache import KVCache
from longdraft.views.base import Policy, View, budget_of, pad_rows


class SinkWindow(Policy):
    """Shows the first `sink` slots and as many latest ones as the budget allows (MagicDec-Stream).

    sink 0: only the latest.
    """

    usual = (0.85, 0.8)

    def __init__(self, sink: int = 4, keep_ratio: float = 0.07, min_budget: int = 256):
        self.sink = sink
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget

    def seen(self, lengths: list[int]) -> list[int]:
        return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]

    def view(self, cache: KVCache) -> View:
        rows = []
        tail_start = []
        for n in cache.length.tolist():
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            sink = 0 if budget >= n else min(self.sink, budget)
            rows.append(torch.arange(sink, device=cache.length.device)[None])
            tail_start.append(n - budget + sink)
        return pad_rows(rows, tail_start)
