"""BudgetDraft and TriForce: chunks of the prompt ranked by attention."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.views.prompt_selection import PromptSelection


class Chunks(PromptSelection):
    """At most `budget` slots of the prompt: its first chunk, the best chunks after it, and its last `recent` slots.

    A last chunk that is not full counts as recent. A chunk's score is the sum over its slots, per layer and key head
    (BudgetDraft's TopKChunks). With a budget below 2*recent + chunk, the recent slots get half of what the first chunk
    leaves.
    """

    def __init__(self, budget: int, chunk: int = 8, score: str = "obs_window", recent: int = 32, every: int = 0):
        super().__init__(score, every)
        if budget < 3 * chunk:
            raise ValueError(f"the budget is {budget}: give at least three chunks of {chunk} slots")
        self.budget, self.chunk, self.recent = budget, chunk, min(recent, (budget - chunk) // 2)

    def tail_start(self, length: int) -> int:
        return 0 if length <= self.budget else (length - self.recent) // self.chunk * self.chunk

    def select(self, scores: Tensor, length: int) -> Tensor:
        heads, tail_start = scores.shape
        count = (self.budget - (length - tail_start)) // self.chunk
        chunks = scores.view(heads, -1, self.chunk).sum(-1)
        chunks[:, 0] = float("inf")
        best = chunks.topk(count).indices.sort().values  # ascending, so that memory is read in order
        slots = best[..., None] * self.chunk + torch.arange(self.chunk, device=best.device)
        return slots.flatten(1)
