"""Keeps the queries of the target's latest pass, which say what the next draft should read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


class Queries:
    """The last queries of each request in the latest pass that was watched, at most `most` of each,
    by layer.

    It wraps the attention of single layers, so it needs no attention backend of its own and other
    models are not touched. A pass is watched unless `on` is False; passes without attention
    metadata (warm-up) are not.
    """

    def __init__(self, most: int):
        self.most = most
        self.on = True
        self.kept: dict[str, Tensor] = {}
        self.ends: list[int] = []  # by request: where its queries end in a tensor of `kept`
        self._index = torch.zeros(0, dtype=torch.long)
        self._starts = torch.zeros(0)

    def watch(self, layer: Any) -> None:
        """From now on, keep the queries of this attention layer."""
        attend = layer.impl.forward

        def forward(
            layer: Any,
            query: Any,
            key: Any,
            value: Any,
            kv_cache: Any,
            attn_metadata: Any,
            *a: Any,
            **k: Any,
        ):
            if self.on and attn_metadata is not None:
                self._keep(layer.layer_name, query, attn_metadata.query_start_loc)
            return attend(layer, query, key, value, kv_cache, attn_metadata, *a, **k)

        layer.impl.forward = forward

    def _keep(self, name: str, query: Tensor, starts: Tensor) -> None:
        if starts is not self._starts:  # a new pass; all its layers share one tensor
            at = starts.tolist()
            counts = [min(self.most, end - start) for start, end in pairwise(at)]
            rows = [torch.arange(end - n, end) for n, end in zip(counts, at[1:], strict=True)]
            self._index = torch.cat(rows).to(query.device)
            self._starts = starts
            self.ends = torch.tensor(counts).cumsum(0).tolist()
            self.kept = {}
        self.kept[name] = query[self._index]  # a copy: the pass may use the memory of `query` again

    def last(self, name: str, request: int, count: int) -> Tensor:
        """[count,H,D] the last queries of a request in this layer."""
        end = self.ends[request]
        return self.kept[name][end - count : end]
