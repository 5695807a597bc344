"""Vegas: the attention of each verify pass selects the keys that the next draft reads."""

from __future__ import annotations

import torch
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, KVCache
from longdraft.models.lm import LM
from longdraft.ops import Compact, choose, uniform
from longdraft.views.base import ByLayerAndRow, Policy, View, budget_of, pad_rows, without_row

Scored = tuple[dict[int, Tensor], list[int]]  # the arguments of `_choose`

SHARE = 0.25  # the share of its score that a position passes on (measured: docs/log)


class Guided(Policy):
    """Selects, in each layer, the slots with the best scores in the verify pass (Vegas sec. 3).

    Only slots up to the root are selected among. Scores are means over query rows and heads; slots
    after the root are all shown. The first selection uses the query of the last prompt token.
    score: "weights" or "logits". rows: "ends" are the first and last node, as in the paper; "mean"
    is the mean of all nodes. reach: each position passes a share of its score on to the next
    `reach` positions, because a draft that repeats a passage reads one position further with every
    token (0 in the paper). A view stays for
    `lasts` steps, 1 unless `stay` is called: it shows all slots from the root on, so it remains a
    view of the text. It is chosen when a draft first reads it, since many texts have no draft that
    does.
    """

    usual = (0.9, 0.85)
    renews = True

    def __init__(
        self,
        keep_ratio: float = 0.07,
        min_budget: int = 256,
        score: str = "weights",
        rows: str = "mean",
        reach: int = 8,
    ):
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget
        self.score = score
        self.rows = rows
        self.reach = reach
        self.lasts = 1
        self._age = 0  # verify passes since the view was chosen
        self._copies: ByLayerAndRow[Compact] = {}
        self._scored: Scored | None = None  # from which the view is yet to be chosen
        self._longest = 1 << 40  # slots that the longest row may have: unknown before the start

    def seen(self, lengths: list[int]) -> list[int]:
        if self._view is None:
            return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]
        return self._view.seen(lengths)

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._forget()
        self._copies = {}
        self._longest = tokens.shape[1]

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add a row: the next verify pass selects for every row.

        The copies of the other rows are kept.
        """
        self._forget()
        self._longest = tokens.shape[1]

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        view = self.view(cache)
        if view is None:
            self._copies = without_row(self._copies, row, len(cache.length))
        else:
            self._view = view.without(row)
            self._copies = self._view.copies

    def _forget(self) -> None:
        self._view = None
        self._scored = None

    def stay(self, steps: int) -> None:
        self.lasts = steps

    def captures(self) -> CaptureSpec:
        none = self._view is None and self._scored is None
        due = none or self._age + 1 >= self.lasts
        return self.choosing() if due else CaptureSpec()

    def choosing(self) -> CaptureSpec:
        if self._longest <= self.min_budget:  # every slot is shown, whatever its score
            return CaptureSpec()
        return CaptureSpec(rows=self.rows, of=self.score)

    def update(self, cache: KVCache, captured: Captures) -> None:
        self._longest = int(cache.length.max()) + 1 if len(cache.length) else 0
        self._age += 1
        if captured.scores and captured.covered is not None:
            self._age = 0
            # a row that is done has not committed its root
            covered = torch.minimum(captured.covered, cache.length).tolist()
            self._forget()
            self._scored = captured.scores, covered

    def view(self, cache: KVCache) -> View | None:
        if self._scored is not None:
            self._view = self._choose(*self._scored)
            self._scored = None
        return self._view

    def _choose(self, scores: dict[int, Tensor], covered: list[int]) -> View:
        """Select the slots with the best scores.

        scores {layer: [B,R,1,S]}, of which covered[b] slots are scored in row b.
        """
        table = list[Tensor]()
        for s in scores.values():
            table.append(s[:, 0, 0] if s.shape[1] == 1 else s.mean((1, 2)))
        rows = []
        tail_start = []
        for b, n in enumerate(covered):
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            everything = budget >= n
            rows.append(
                choose([s[b, :n] for s in table], 0 if everything else budget, self.reach, SHARE)
            )
            tail_start.append(0 if everything else n)
        view = pad_rows(rows, tail_start, {layer: i for i, layer in enumerate(scores)})
        view.copies = self._copies
        return view


class RandomSlots(Policy):
    """A control that Guided must beat, which selects as many slots at random.

    They are committed slots, drawn uniformly; later slots are all shown.
    """

    usual = (0.2, 0.2)

    def __init__(self, keep_ratio: float = 0.07, min_budget: int = 256, seed: int = 0):
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget
        self.seed = seed

    def seen(self, lengths: list[int]) -> list[int]:
        return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]

    def view(self, cache: KVCache) -> View:
        rows = []
        tail_start = []
        for n in cache.length.tolist():
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            key = torch.tensor([self.seed]), torch.tensor([[n]]), torch.arange(n)
            indices = uniform(*key)[0].topk(0 if budget >= n else budget).indices.sort().values
            rows.append(indices.to(cache.length.device))
            tail_start.append(0 if budget >= n else n)
        return pad_rows(rows, tail_start)
