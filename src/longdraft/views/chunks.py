"""BudgetDraft and TriForce: chunks of the prompt, ranked by attention."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.views.prompt_selection import PromptSelection


class Chunks(PromptSelection):
    """At most `budget` slots of the prompt: its first chunk, its last `recent` slots, the best whole chunks between.

    What does not fill a chunk at the end is kept with the last slots. A chunk's score is the sum over its slots, per
    layer and key head (BudgetDraft's TopKChunks). A budget below 2*recent + chunk gives the last slots half
    of what the first chunk leaves.
    """

    def __init__(self, budget: int, chunk: int = 8, score: str = "obs_window", recent: int = 32, every: int = 0):
        super().__init__(score, every)
        if budget < 3 * chunk:
            raise ValueError(f"a budget of {budget} is less than three chunks of {chunk}")
        self.budget, self.chunk, self.recent = budget, chunk, min(recent, (budget - chunk) // 2)

    def tail_start(self, length: int) -> int:
        return 0 if length <= self.budget else (length - self.recent) // self.chunk * self.chunk

    def pick(self, scores: Tensor, length: int) -> Tensor:
        heads, tail_start = scores.shape
        count = (self.budget - (length - tail_start)) // self.chunk
        chunks = scores.view(heads, -1, self.chunk).sum(-1)
        chunks[:, 0] = float("inf")
        best = chunks.topk(count).indices.sort().values  # in the order of the text: fewer jumps through memory
        slots = best[..., None] * self.chunk + torch.arange(self.chunk, device=best.device)
        return slots.flatten(1)
