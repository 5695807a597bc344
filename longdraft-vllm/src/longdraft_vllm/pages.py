"""What a draft reads: whole pages of a request's cache, chosen for each layer, and everything
newer.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from longdraft.ops import choose
from longdraft.ops.select import spread
from longdraft.views.base import budget_of


def kept(covered: int, page: int, keep_ratio: float, min_budget: int) -> int:
    """How many of the whole pages among `covered` slots a draft reads: a budget of slots, rounded
    up to pages.
    """
    return min(covered // page, ceil(budget_of(covered, keep_ratio, min_budget) / page))


def best_pages(scores: Tensor, page: int, count: int, reach: int, share: float) -> Tensor:
    """scores [L,S] of slots -> [L,count] whole pages with the most score, ascending.

    Each slot first passes a share of its score on to the next `reach` slots, as in
    longdraft.views.guided.
    """
    whole = scores.shape[-1] // page
    sums = spread(scores, reach, share)[:, : whole * page].view(len(scores), whole, page).sum(-1)
    return choose(list(sums), count)


def sink_and_latest(whole: int, count: int, sink: int) -> Tensor:
    """[1,count] of `whole` pages: the first `sink` ones and as many of the latest as are left."""
    first = min(sink, count)
    return torch.cat([torch.arange(first), torch.arange(whole - count + first, whole)])[None]


def scores_of(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Attention weights of queries [T,H,D] over keys [K,S,D], averaged over queries and heads ->
    [S] float32.
    """
    T, H, D = queries.shape
    K = len(keys)
    grouped = queries.view(T, K, H // K, D).transpose(0, 1).reshape(K, -1, D)
    return (grouped @ keys.transpose(1, 2)).float().mul(scale).softmax(-1).mean((0, 1))


class Table:
    """The block tables of one draft: for each layer and row its selected pages, then every page of
    the row's tail.

    rows: for each, its true block table [N], selected pages [L|1,P_b], the first page of its tail
    and the number of slots that the draft may reach. `lengths` says how many slots of such a table
    are filled at a true length.
    """

    def __init__(self, rows: list[tuple[Tensor, Tensor, int, int]], page: int):
        self.page = page
        self.shift = [(tail - selected.shape[-1]) * page for _, selected, tail, _ in rows]
        lists = []
        for table, selected, tail, reached in rows:
            newest = torch.arange(tail, ceil(reached / page), device=selected.device).expand(
                len(selected), -1
            )
            lists.append(table[torch.cat([selected, newest], -1)])
        layers = max(map(len, lists))
        most = max(x.shape[-1] for x in lists)
        self.blocks = torch.zeros(
            layers, len(lists), most, dtype=lists[0].dtype, device=lists[0].device
        )
        for b, x in enumerate(lists):
            self.blocks[:, b, : x.shape[-1]] = x

    def lengths(self, true: list[int]) -> list[int]:
        return [n - shift for n, shift in zip(true, self.shift, strict=True)]
