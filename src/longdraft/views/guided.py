"""Vegas: the target's own verification says which keys the next draft should read."""

from __future__ import annotations

from torch import Tensor, minimum, stack

from longdraft.cache import KVCache
from longdraft.model import Taps
from longdraft.views.base import Policy, View, budget_of, pad_rows


class Guided(Policy):
    """Slots 0..root ranked by the verify pass's first and last query rows, one choice per layer (Vegas sec. 3).

    Scores are means over the rows and all query heads; what came after the root stays visible. The first choice is
    guided by the last prompt token's row. recent: so many places of the budget go to the latest slots, whatever their
    score (at most half; the paper has 0).
    """

    def __init__(
        self, ratio: float = 0.07, floor: int = 256, score: str = "logits", rows: str = "ends", recent: int = 0
    ):
        self.ratio, self.floor, self.score, self.rows, self.recent = ratio, floor, score, rows, recent
        self._view: View | None = None

    def wants(self) -> Taps:
        return Taps(rows=self.rows, of=self.score)

    def update(self, cache: KVCache, taps: Taps) -> None:
        if taps.scores and taps.covered is not None:
            # a row that is done committed nothing: its root is still scratch
            self._view = self._choose(taps.scores, minimum(taps.covered, cache.length).tolist())

    def _choose(self, scores: dict[int, Tensor], covered: list[int]) -> View:
        """scores {layer: [B,R,1,S]}, covered: slots scored per row -> picks by topk, unsorted (order means nothing)."""
        table = stack([s.mean((1, 2)) for s in scores.values()])
        rows, since = [], []
        for b, n in enumerate(covered):
            budget = budget_of(n, self.ratio, self.floor)
            everything = budget >= n
            recent = min(self.recent, budget // 2)
            ranked = table[:, b, : n - recent]
            rows.append(ranked.topk(0 if everything else budget - recent, sorted=False).indices)
            since.append(0 if everything else n - recent)
        return pad_rows(rows, since, table.device, {layer: i for i, layer in enumerate(scores)})

    def view(self, cache: KVCache) -> View | None:
        return self._view
