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
from longdraft.backends.differential import Halves
from longdraft.backends.indexers import Choice, attend_in_groups
from longdraft.backends.latent import Latent
from longdraft.backends.recurrent_pass import RecurrentPass
from longdraft.backends.span import Span
from longdraft.core import Captures, KVCache, KVView, Tree

Options = tuple[float, float | None, Tensor | None]  # scale, soft cap, sink


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
        tokens = tree.tokens[:, start:]
        if model.rates:
            return forward_by_path(model, tree, cache, start, captured, logits)
        visible = [None if bool(m.all()) else m for m in tree.mask[:, start:]]
        kept = captured.spec.kept(tree).tolist() if captured.spec.rows else []
        begin = cache.length.tolist()
        layers = (model.spans, model.latents, model.sources)
        indexed = model.indexed
        count = model.config.num_hidden_layers
        choice = (
            Choice(cache, begin, start, tree.depth, visible, count, indexed) if indexed else None
        )
        halves = Halves() if model.differential else None
        p = Pass(
            cache, begin, start, tree.depth, visible, kept, view, captured, *layers, choice, halves
        )
        with model.rotating(cache):
            scans = RecurrentPass(tree, cache, start) if model.scans else None
            return model.run(p, tokens, model.position(tree, start, cache), captured, logits, scans)


@dataclass
class Pass:
    """What attention needs to know of one forward pass over nodes [start, size) of a tree.

    A layer of `sources` attends to the slots of its source, under that layer's view, and its
    queries count as further heads of it: the scores of a source are means over the layers that read
    its keys.
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
    latents: dict[int, Latent]
    sources: dict[int, int]  # of layers without their own keys, the layer whose keys they read
    choice: Choice | None = None
    halves: Halves | None = None  # of the values, where each layer attends twice
    calls: int = 0
    # by layer and row, how often it was scored
    readers: Counter[tuple[int, int]] = field(default_factory=Counter)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *options: *Options) -> Tensor:
        """q [B,H,T,D] of the last T new nodes, k, v [B,K,W,D] of all, scale, soft cap, sink ->
        [B,T,H,Dv].

        Of a layer with latents k is [latent | rotated] and v has no numbers.
        """
        v = v if self.halves is None else self.halves.stored(layer, v)
        if layer not in self.sources:
            self.cache.write(layer, k, v, [n + self.start for n in self.begin])
        layer = self.sources.get(layer, layer)
        latent = None if v.shape[3] else self.latents[layer]
        if latent is None:
            return self._by_row(layer, q, options, ops.attend)
        if self.view is None and not self._is_scored(layer) and latent.pays_expanded(q.shape[2]):
            return self._by_row(layer, q, options, latent.attend_expanded)
        return latent.output(self._by_row(layer, latent.query(q), options, latent.attend_cached))

    def _by_row(
        self, layer: int, q: Tensor, options: Options, attend: Callable[..., ops.Attended]
    ) -> Tensor:
        """Each row's queries q [H,T,D] over what it may read -> [B,T,H,Dv]; attend: as
        ops.attend.
        """
        rows = list[Tensor]()
        scored = self._is_scored(layer)
        for b in range(len(q)):
            keep = self.kept[b] if scored else None
            attended = attend_in_groups(attend, q[b], self.groups(layer, b, q[b]), *options, keep)
            if scored:
                self.capture(layer, b, attended)
            rows.append(attended.out)
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def _is_scored(self, layer: int) -> bool:
        spec = self.captured.spec
        return spec.rows is not None and layer not in self.spans and spec.only in (None, layer)

    def groups(self, layer: int, b: int, q: Tensor) -> list[list[ops.Segment]]:
        """The keys that row b's queries q [H,T,D] may read in this layer; a list per key head where
        these differ.
        """
        if self.choice is not None and self.choice.narrows(layer):
            k, v = self.cache.read(layer, b)
            return self.choice.groups(layer, b, k, v, self.view, q, self._is_scored(layer))
        segments = self.segments(layer, b, q)
        return [segments if self.halves is None else [self.halves.read(s) for s in segments]]

    def segments(self, layer: int, b: int, q: Tensor) -> list[ops.Segment]:
        """The keys that row b's queries q [H,T,D] may read in this layer."""
        (k, v), n, count = self.cache.read(layer, b), self.begin[b], q.shape[1]
        end = n + self.depth.shape[1]
        visible = self.visible[b]
        visible = None if visible is None else visible[-count:]
        span = self.spans.get(layer)
        if span is not None:
            low = max(0, span.low(n))  # the first key that any node may see
            return [ops.Segment(k[:, low:end], v[:, low:end], self._near(b, low, span, count))]
        if self.view is not None:
            return self.view.segments(layer, b, k, v, end, visible, q)
        return [ops.Segment(k[:, :end], v[:, :end], visible)]

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
        columns = len(self.cache.read(layer, b)[0]) if spec.split else 1
        mean = kept[..., :end].float().view(columns, -1, kept.shape[1], end).mean(1).transpose(0, 1)
        mean = mean.mean(0, keepdim=True) if spec.rows == "mean" else mean
        if layer not in scores:
            scores[layer] = mean.new_full((len(self.begin), *mean.shape[:2], most), float("-inf"))
        self.readers[layer, b] += 1
        if (count := self.readers[layer, b]) > 1:
            before = scores[layer][b, ..., :end]
            mean = before + (mean - before) / count
        scores[layer][b, ..., :end] = mean
