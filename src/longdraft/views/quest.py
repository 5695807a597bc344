"""Quest: each query reads the pages of the cache that may contain its best keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.models.lm import LM
from longdraft.ops import Segment, StoredRow
from longdraft.views.base import ByLayerAndRow, Policy, budget_of, without_row


@dataclass
class Pages:
    """The smallest and the largest key of each full page, which is computed only once.

    known: both [K,N,D], per channel.
    """

    page: int
    known: ByLayerAndRow[tuple[Tensor, Tensor]] = field(default_factory=dict)

    def bounds(self, layer: int, b: int, row: StoredRow, count: int, q: Tensor) -> Tensor:
        """An upper bound [K,count] of q.k in each page.

        For queries q [H,W,D] and the row's keys. In each channel no key of a page gives more than
        max(q * low, q * high) (Quest sec. 3.3). The query heads and nodes of a key head
        read the same pages, so the bound is the largest of theirs.
        """
        low, high = (bound[:, :count].mT for bound in self._extended((layer, b), row, count))
        queries = q.reshape(row.heads, -1, row.dim)
        return (queries.clamp(min=0) @ high + queries.clamp(max=0) @ low).amax(1)

    def _extended(self, key: tuple[int, int], row: StoredRow, count: int) -> tuple[Tensor, Tensor]:
        """The entry of `known`, extended to at least `count` pages."""
        low, high = self.known.get(key) or (row.part(0, 0).keys(),) * 2
        have = low.shape[1]
        if have < count:
            keys = row.part(have * self.page, count * self.page).keys()
            new = keys.unflatten(1, (count - have, self.page))
            low = torch.cat([low, new.amin(2)], 1)
            high = torch.cat([high, new.amax(2)], 1)
            self.known[key] = low, high
        return low, high


@dataclass
class QuestView:
    """A view that is not indexable: each query selects its own pages.

    counts: full pages of each row; selected: how many are read. Slots after the last full page are
    always shown.
    """

    indexable: ClassVar[Literal[False]] = False
    counts: list[int]
    selected: list[int]
    pages: Pages
    dense: int

    def segments(
        self, layer: int, b: int, row: StoredRow, end: int, visible: Tensor | None, q: Tensor
    ) -> list[Segment]:
        count = self.counts[b]
        selected = self.selected[b]
        page = self.pages.page
        if layer < self.dense or selected >= count:
            return [Segment(*row.part(0, end).numbers(), visible)]
        best = self.pages.bounds(layer, b, row, count, q).topk(selected, sorted=False).indices
        slots = (best[..., None] * page + torch.arange(page, device=best.device)).flatten(1)
        near = Segment(*row.part(count * page, end).numbers(), visible)
        return [Segment(*row.at(slots).numbers()), near]


class Quest(Policy):
    """Shows as many pages of `page` slots as the budget holds, at least 3.

    One of them is the page being filled. The first `dense` layers see everything, as published.
    """

    usual = (0.9, 0.85)

    def __init__(
        self, keep_ratio: float = 0.07, min_budget: int = 256, page: int = 16, dense: int = 2
    ):
        self.keep_ratio = keep_ratio
        self.min_budget = min_budget
        self.page = page
        self.dense = dense
        self._pages = Pages(page)

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self._pages = Pages(self.page)

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add a row, whose pages are computed when they are first read."""

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        self._pages = Pages(self.page, without_row(self._pages.known, row, len(cache.length)))

    def seen(self, lengths: list[int]) -> list[int]:
        return [budget_of(n, self.keep_ratio, self.min_budget) for n in lengths]

    def view(self, cache: KVCache) -> QuestView:
        lengths = cache.length.tolist()
        counts = [n // self.page for n in lengths]
        selected = []
        for n, count in zip(lengths, counts, strict=True):
            budget = budget_of(n, self.keep_ratio, self.min_budget)
            selected.append(count if budget >= n else max(3, budget // self.page) - 1)
        return QuestView(counts, selected, self._pages, self.dense)
