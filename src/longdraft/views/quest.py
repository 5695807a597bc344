"""Quest: every draft step reads the pages that could hold the keys its own query likes best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.models.lm import LM
from longdraft.ops import Segment
from longdraft.views.base import Policy, Table, budget_of, table_without


@dataclass
class Pages:
    """lows, highs {(layer, row): [K,N,D]}: per channel, the least and greatest of each of a row's first N full pages.

    They are made of committed keys alone, which never change, so a page is computed once.
    """

    page: int
    lows: Table[Tensor] = field(default_factory=dict)
    highs: Table[Tensor] = field(default_factory=dict)

    def bounds(self, layer: int, b: int, k: Tensor, count: int, q: Tensor) -> Tensor:
        """For queries q [H,W,D] and keys k [K,S,D] of the row -> [K,count], no less than any q.k in each page.

        Per channel a page cannot give more than max(q * low, q * high) (Quest sec. 3.3); of a key head's query heads
        and nodes, the greatest bound counts, since they read the same pages.
        """
        K, _, D = k.shape
        low, high = (
            self._grown(t, (layer, b), k, count, least) for t, least in ((self.lows, True), (self.highs, False))
        )
        rows = q.reshape(K, -1, D)
        most = rows.clamp(min=0) @ high[:, :count].mT + rows.clamp(max=0) @ low[:, :count].mT
        return most.amax(1)

    def _grown(self, table: Table[Tensor], key: tuple[int, int], k: Tensor, count: int, least: bool) -> Tensor:
        known = table.get(key)
        have = 0 if known is None else known.shape[1]
        if known is None or have < count:
            new = k[:, have * self.page : count * self.page].unflatten(1, (count - have, self.page))
            new = new.amin(2) if least else new.amax(2)
            known = table[key] = new if known is None else torch.cat([known, new], 1)
        return known


@dataclass
class QuestView:
    """Not indexable: each query selects its own pages. counts: full pages of each row; selected: how many are read.

    Slots after the last full page are always seen.
    """

    indexable: ClassVar[bool] = False
    tail_start: Tensor
    counts: list[int]
    selected: list[int]
    pages: Pages
    dense: int

    def segments(
        self, layer: int, b: int, k: Tensor, v: Tensor, end: int, visible: Tensor | None, q: Tensor
    ) -> list[Segment]:
        count, selected, page = self.counts[b], self.selected[b], self.pages.page
        if layer < self.dense or selected >= count:
            return [Segment(k[:, :end], v[:, :end], visible)]
        best = self.pages.bounds(layer, b, k, count, q).topk(selected, sorted=False).indices
        slots = (best[..., None] * page + torch.arange(page, device=k.device)).flatten(1)[..., None]
        near = Segment(k[:, count * page : end], v[:, count * page : end], visible)
        return [Segment(*(x.gather(1, slots.expand(-1, -1, x.shape[-1])) for x in (k, v))), near]


class Quest(Policy):
    """Pages of `page` slots, as many as the budget holds but at least 3, the page being filled among them.

    The first `dense` layers see everything, as published.
    """

    def __init__(self, keep_ratio: float = 0.07, min_budget: int = 256, page: int = 16, dense: int = 2):
        self.keep_ratio, self.min_budget, self.page, self.dense = keep_ratio, min_budget, page, dense
        self._pages = Pages(page)

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._pages = Pages(self.page)

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Its pages are computed when they are first read."""

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        lows, highs = (table_without(t, row, len(cache.length)) for t in (self._pages.lows, self._pages.highs))
        self._pages = Pages(self.page, lows, highs)

    def seen(self, lengths: list[int]) -> list[int]:
        return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]

    def view(self, cache: KVCache) -> QuestView:
        lengths = cache.length.tolist()
        counts = [n // self.page for n in lengths]
        selected = []
        for n, count in zip(lengths, counts, strict=True):
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            selected.append(count if budget >= n else max(3, budget // self.page) - 1)
        tail_start = torch.tensor([c * self.page for c in counts], device=cache.length.device)
        return QuestView(tail_start, counts, selected, self._pages, self.dense)
