"""A control: a guided view must reach longer acceptance than this at the same budget, or its guidance is useless."""

from __future__ import annotations

import torch

from longdraft.core.cache import KVCache
from longdraft.ops import uniform
from longdraft.views.base import Policy, View, budget_of, pad_rows


class RandomSlots(Policy):
    """As many committed slots as a guided view selects, drawn uniformly; later slots are all shown."""

    def __init__(self, keep_ratio: float = 0.07, min_budget: int = 256, seed: int = 0):
        self.keep_ratio, self.min_budget, self.seed = keep_ratio, min_budget, seed

    def seen(self, lengths: list[int]) -> list[int]:
        return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]

    def view(self, cache: KVCache) -> View:
        rows, tail_start = [], []
        for n in cache.length.tolist():
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            key = torch.tensor([self.seed]), torch.tensor([[n]]), torch.arange(n)
            indices = uniform(*key)[0].topk(0 if budget >= n else budget).indices.sort().values
            rows.append(indices.to(cache.length.device))
            tail_start.append(0 if budget >= n else n)
        return pad_rows(rows, tail_start)
