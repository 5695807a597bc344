"""The backend that runs Transformers' own modules. It can do everything and defines what is
right.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from longdraft import ops
from longdraft.backends.architecture import Architecture
from longdraft.backends.base import Backend
from longdraft.backends.by_path import forward_by_path
from longdraft.backends.features.feature import Groups, wrapped
from longdraft.backends.features.indexer import attend_in_groups
from longdraft.backends.features.span import Span
from longdraft.core import Captures, KVCache, KVView, Tree


class Eager(Backend):
    """Transformers' forward, with attention over a KVCache in place of its own."""

    name = "eager"
    max_nodes = sys.maxsize

    def __init__(self, architecture: Architecture):
        self.architecture = architecture

    def supports(self, view: KVView | None, logits: int = 0) -> bool:
        return True

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        model = self.architecture
        if model.by_path is not None:
            return forward_by_path(model, model.by_path, tree, cache, start, captured, logits)
        visible = [None if bool(m.all()) else m for m in tree.mask[:, start:]]
        kept = captured.spec.kept(tree).tolist() if captured.spec.rows else []
        begin = cache.length.tolist()
        p = EagerPass(cache, begin, start, tree.depth, visible, kept, view, captured, model.spans)
        if model.reading:
            p.groups = wrapped(model.reading, p.read)
        tokens = tree.tokens[:, start:]
        position = model.position(tree, start, cache)
        return model.run(p, tokens, position, captured, logits, tree=tree, start=start, cache=cache)


@dataclass
class EagerPass:
    """The state that attention needs in one forward pass over nodes [start, size) of a tree.

    Where several layers attend to the slots of one, their queries count as further heads of it: its
    scores are means over the layers that read its keys. groups: as Pass.read, with the features of
    the model around it.
    """

    cache: KVCache
    begin: list[int]  # committed length of each row
    start: int
    depth: Tensor  # [B,size]
    visible: list[Tensor | None]  # per row [W,size]; None where a node sees all of them
    kept: list[list[int]]  # per row, the query nodes whose scores are captured
    view: KVView | None
    captured: Captures
    spans: dict[int, Span]  # of the layers without full attention
    calls: int = 0
    # by layer and row, how often it was scored
    readers: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.groups: Groups = self.read

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
        compute: Callable[..., ops.Attended] | None = None,
    ) -> Tensor:
        """q [B,H,T,D] of the last T new nodes, k, v [B,K,W,D] of all -> [B,T,H,Dv].

        compute: as ops.attend, for each row. k, v with W=0 are cached already.
        """
        if k.shape[2]:
            self.cache.write(layer, k, v, [n + self.start for n in self.begin])
        compute = compute or ops.attend
        options = (scale, softcap, sink)
        rows = list[Tensor]()
        scored = self.is_scored(layer)
        for b in range(len(q)):
            keep = self.kept[b] if scored else None
            groups = self.groups(layer, b, q[b])
            attended = attend_in_groups(compute, q[b], groups, *options, keep)
            if scored:
                self.capture(layer, b, attended)
            rows.append(attended.out)
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def is_scored(self, layer: int) -> bool:
        """Whether the weights of this layer's attention are captured."""
        spec = self.captured.spec
        return spec.rows is not None and layer not in self.spans and spec.only in (None, layer)

    def read(self, layer: int, b: int, q: Tensor) -> list[list[ops.Segment]]:
        """The keys that row b's queries q [H,T,D] may read in this layer; a list per key head where
        these differ.
        """
        return [self.segments(layer, b, q)]

    def segments(self, layer: int, b: int, q: Tensor) -> list[ops.Segment]:
        """The keys that row b's queries q [H,T,D] may read in this layer."""
        row, n, count = self.cache.stored_row(layer, b), self.begin[b], q.shape[1]
        end = n + self.depth.shape[1]
        visible = self.visible[b]
        visible = None if visible is None else visible[-count:]
        span = self.spans.get(layer)
        if span is not None:
            low = max(0, span.low(n))  # the first key that any node may see
            near = self._near(b, low, span, count)
            return [ops.Segment(*row.part(low, end).numbers(), near)]
        if self.view is not None:
            return self.view.segments(layer, b, row, end, visible, q)
        return [ops.Segment(*row.part(0, end).numbers(), visible)]

    def _near(self, b: int, low: int, span: Span, count: int) -> Tensor:
        """[T,end-low] keys that the position of each of the last T = count nodes lets it see."""
        n = self.begin[b]
        depth = self.depth[b]
        position = torch.cat([torch.arange(low, n, device=depth.device), n + depth])
        near = position >= span.low(n + depth[-count:])[:, None]
        if (mask := self.visible[b]) is not None:
            near[:, n - low :] &= mask[-count:]
        return near

    def capture(self, layer: int, b: int, attended: ops.Attended) -> None:
        """Store the mean over heads of row b's scores [H,R,S], for the slots up to the root."""
        spec = self.captured.spec
        scores = self.captured.scores
        kept = attended.logits if spec.of == "logits" else attended.weights
        assert kept is not None
        end = self.begin[b] + 1
        most = max(self.begin) + 1
        columns = self.cache.stored_row(layer, b).heads if spec.split else 1
        mean = kept[..., :end].float().view(columns, -1, kept.shape[1], end).mean(1).transpose(0, 1)
        mean = mean.mean(0, keepdim=True) if spec.rows == "mean" else mean
        if layer not in scores:
            scores[layer] = mean.new_full((len(self.begin), *mean.shape[:2], most), float("-inf"))
        self.readers[layer, b] += 1
        if (count := self.readers[layer, b]) > 1:
            before = scores[layer][b, ..., :end]
            mean = before + (mean - before) / count
        scores[layer][b, ..., :end] = mean
