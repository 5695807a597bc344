"""Selects chunks or slots once, after prefill, to which the end of the prompt attends.

Chunks, or SnapKV's slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, KVCache, Tree, without
from longdraft.models.lm import LM
from longdraft.views.base import ByLayerAndRow, Policy, T, View, budget_of, pad_rows

OBSERVED = 32  # the maximum number of queries whose attention is averaged
# slots over which SnapKV averages scores, so that neighbors of a good key are kept with it
POOL = 5


def _scores(
    model: LM, tokens: Tensor, cache: KVCache, slots: int, first: int, spec: CaptureSpec
) -> dict[int, Tensor]:
    """Run the tokens from slot `first` to the root again without a commit -> {layer: [K,slots]}.

    With recurrent layers it may be fewer tokens: those behind a state that is kept.
    """
    n = int(cache.length[0])
    captured = Captures(spec)
    with cache.reopen_from(first) as first:
        model(Tree.chain(tokens[:, first : n + 1]), cache, captured=captured)
    return {layer: scores[0, 0, :, :slots] for layer, scores in captured.scores.items()}


def obs_window(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """Mean softmax weights of the last queries, at most those after `slots`.

    See SnapKV; BudgetDraft sums them.
    """
    first = max(slots, int(cache.length[0]) + 1 - OBSERVED)
    return _scores(
        model, tokens, cache, slots, first, CaptureSpec(rows="mean", of="weights", split=True)
    )


def last_query_mean_key(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """The last query times each key (TriForce).

    The mean over a chunk is the query times the chunk's mean key.
    """
    root = int(cache.length[0])
    return _scores(
        model, tokens, cache, slots, root, CaptureSpec(rows="first", of="logits", split=True)
    )


def last_key(model: LM, tokens: Tensor, cache: KVCache, slots: int) -> dict[int, Tensor]:
    """The last key, in place of the query, times each key (BudgetDraft's released evaluation)."""
    n = int(cache.length[0])
    # writes the root's key to a scratch slot
    _scores(model, tokens, cache, slots, n, CaptureSpec())
    full = set(model.architecture.with_keys) - set(model.windows)
    keys = {
        layer: cache.stored_row(layer, 0).part(0, n + 1).keys().float()
        for layer in cache.layers
        if layer in full
    }
    return {layer: (k[:, n : n + 1] * k[:, :slots]).sum(-1) for layer, k in keys.items()}


# (model, tokens [1,N], cache of one row, slots to score) -> {layer: [K,slots]}, for layers with
# full attention
SCORERS = {f.__name__: f for f in (obs_window, last_query_mean_key, last_key)}


class PromptSelection(Policy):
    """Selects slots of each layer and key head before a row's first draft, and keeps them.

    Later slots are all shown. A subclass defines `tail_start` and `select`. every: select again
    every this many steps (0: never).
    """

    def __init__(self, score: str, every: int = 0):
        self.scorer = SCORERS[score]
        self.every = every
        self._source: tuple[LM, Tensor] | None = None  # the model, and the rows' tokens
        # per row: the slots [K,P] of each layer, {} where everything is shown; None: still to be
        # selected
        self._selected: list[dict[int, Tensor] | None] = []
        self._tail_start: list[int] = []
        self._steps = 0

    def shown(self, length: int) -> int:
        """The approximate number of slots of a `length`-token prompt that are shown."""
        raise NotImplementedError

    def seen(self, lengths: list[int]) -> list[int]:
        return [self.shown(n) for n in lengths] if self._view is None else self._view.seen(lengths)

    def tail_start(self, length: int) -> int:
        """The slot of a `length`-token prompt from which on all are shown.

        0: the budget covers everything.
        """
        raise NotImplementedError

    def select(self, scores: Tensor, length: int) -> Tensor:
        """The slots [K,P] with the best scores, equally many for each head.

        scores [K,tail_start(length)]: the higher the better.
        """
        raise NotImplementedError

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._source = (model, tokens)
        self._steps = 0
        self._view = None
        self._selected = [None] * len(cache.length)
        self._tail_start = [0] * len(cache.length)

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add a row: slots are selected and copied for it only."""
        self._source = model, tokens
        self._selected.append(None)
        self._tail_start.append(0)

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        self._source = (model, tokens)
        view = self._view
        known = view is not None and len(view.tail_start) == len(self._selected)
        self._selected = without(self._selected, row)
        self._tail_start = without(self._tail_start, row)
        self._view = view.without(row) if view is not None and known else None

    def view(self, cache: KVCache) -> View | None:
        if self.every and self._steps and self._steps % self.every == 0:
            self._selected = [None] * len(self._selected)
            self._view = None
        self._steps += 1
        new = [b for b, selected in enumerate(self._selected) if selected is None]
        for b in new:
            self._select_row(cache, b)
        if new or self._view is None:
            before = self._view
            self._view = self._joined()
            # the copies of the other rows are still valid
            if before is not None and self._view is not None:
                self._view.copies = _without_rows(before.copies, new)
                self._view.copied = _without_rows(before.copied, new)
        return self._view

    def _select_row(self, cache: KVCache, b: int) -> None:
        """Select the slots of row b."""
        assert self._source is not None
        model, tokens = self._source
        length = int(cache.length[b]) + 1  # with the root, whose query is the last one
        tail_start = self.tail_start(length)
        scores = {}
        if tail_start:
            scores = self.scorer(model, tokens[b : b + 1], cache.row(b), tail_start)
        self._selected[b] = {layer: self.select(s, length) for layer, s in scores.items()}
        self._tail_start[b] = tail_start

    def _joined(self) -> View | None:
        """The selections of all rows as a view.

        None if everything is shown, or all layers have sliding windows.
        """
        first = next((selected for selected in self._selected if selected), None)
        if first is None:
            return None
        nothing = {layer: slots[..., :0] for layer, slots in first.items()}
        rows = [selected or nothing for selected in self._selected]
        indices = [torch.stack(list(row.values())) for row in rows]
        return pad_rows(indices, self._tail_start, {layer: i for i, layer in enumerate(first)})


def _without_rows(table: ByLayerAndRow[T], rows: list[int]) -> ByLayerAndRow[T]:
    return {key: entry for key, entry in table.items() if key[1] not in rows}


class Chunks(PromptSelection):
    """Shows the prompt's first chunk, the best chunks after it, and its last `recent` slots.

    At most `budget` slots. A last chunk that is not full counts as recent. A chunk's score is the
    sum over its slots, per layer and key head (BudgetDraft's TopKChunks; TriForce). With a budget
    below 2*recent + chunk, the recent slots get half of what the first chunk leaves.
    """

    def __init__(
        self,
        budget: int,
        chunk: int = 8,
        score: str = "obs_window",
        recent: int = 32,
        every: int = 0,
    ):
        super().__init__(score, every)
        if budget < 3 * chunk:
            raise ValueError(f"the budget is {budget}: give at least three chunks of {chunk} slots")
        self.budget = budget
        self.chunk = chunk
        self.recent = min(recent, (budget - chunk) // 2)

    def shown(self, length: int) -> int:
        return min(length, self.budget)

    def tail_start(self, length: int) -> int:
        return 0 if length <= self.budget else (length - self.recent) // self.chunk * self.chunk

    def select(self, scores: Tensor, length: int) -> Tensor:
        heads, tail_start = scores.shape
        count = (self.budget - (length - tail_start)) // self.chunk
        chunks = scores.view(heads, -1, self.chunk).sum(-1)
        chunks[:, 0] = float("inf")
        # ascending, so that memory is read in order
        best = chunks.topk(count).indices.sort().values
        slots = best[..., None] * self.chunk + torch.arange(self.chunk, device=best.device)
        return slots.flatten(1)


class SnapKV(PromptSelection):
    """Shows the last `window` slots and those before them with the best weights (MagicDec).

    The window is at most 32; weights are after softmax. With a budget below twice the window, the
    window gets half of it.
    """

    usual = (0.9, 0.85)

    def __init__(
        self,
        keep_ratio: float = 0.07,
        min_budget: int = 256,
        window: int = OBSERVED,
        every: int = 0,
    ):
        super().__init__("obs_window", every)
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget
        self.window = min(window, OBSERVED)

    def shown(self, length: int) -> int:
        return budget_of(length, self.keep_ratio, self.min_budget)

    def tail_start(self, length: int) -> int:
        budget = budget_of(length, self.keep_ratio, self.min_budget)
        return 0 if budget >= length else length - max(1, min(self.window, budget // 2))

    def select(self, scores: Tensor, length: int) -> Tensor:
        count = budget_of(length, self.keep_ratio, self.min_budget) - (length - scores.shape[1])
        pooled = F.avg_pool1d(scores[None], POOL, stride=1, padding=POOL // 2)[0]
        return pooled.topk(count).indices.sort().values
