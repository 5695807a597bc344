"""SnapKV: the last queries of the prompt select the keys to keep."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from longdraft.views.base import budget_of
from longdraft.views.prompt_selection import OBSERVED, PromptSelection

POOL = 5  # slots over which scores are averaged, so that neighbours of a good key are kept with it


class SnapKV(PromptSelection):
    """Shows the last `window` slots, at most 32, and the slots before them with the best softmax weights (MagicDec).

    With a budget below twice the window, the window gets half of it.
    """

    def __init__(self, keep_ratio: float = 0.07, min_budget: int = 256, window: int = OBSERVED, every: int = 0):
        super().__init__("obs_window", every)
        self.keep_ratio, self.min_budget, self.window = keep_ratio, min_budget, min(window, OBSERVED)

    def tail_start(self, length: int) -> int:
        budget = budget_of(length, self.keep_ratio, self.min_budget)
        return 0 if budget >= length else length - max(1, min(self.window, budget // 2))

    def select(self, scores: Tensor, length: int) -> Tensor:
        count = budget_of(length, self.keep_ratio, self.min_budget) - (length - scores.shape[1])
        pooled = F.avg_pool1d(scores[None], POOL, stride=1, padding=POOL // 2)[0]
        return pooled.topk(count).indices.sort().values
