"""Layers whose indexer chooses the keys that each query reads (DeepSeek V3.2, sec. 2.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from longdraft import ops
from longdraft.core import KVCache, KVView, is_indexable
from longdraft.errors import InputError

LAYERS = {"indexed_attention", "deepseek_sparse_attention"}  # their layer types; the second is Transformers 5.17's
TOPK = {torch.topk, Tensor.topk}


def indexed_layers(config: Any) -> set[int]:
    """The numbers of these layers, by the config."""
    types = getattr(config.get_text_config(), "layer_types", None) or []
    return {n for n, kind in enumerate(types) if kind in LAYERS}


@dataclass
class Choice:
    """What the indexers of one pass choose for each node: only committed tokens and the node's own path.

    Keys of the indexer of layer n are layer n + `layers` of the cache, without values, so they are committed and rolled
    back with the layer's own keys. The slots of a path ascend with its positions, so that an order by slots is one by
    positions, whatever other nodes lie between them.
    visible: per row [W,size], which nodes each new node sees; None: all. indexed: the layers that read what is chosen.
    slots {layer: [B,W,k]}, what was chosen last.
    """

    cache: KVCache
    begin: list[int]  # committed length of each row
    start: int  # the first new node
    size: int
    visible: list[Tensor | None]
    layers: int
    indexed: set[int]
    slots: dict[int, Tensor] = field(default_factory=dict)
    _scored: bool = False  # whether an indexer reads its keys now, so that the next top-k is its own

    def __post_init__(self) -> None:
        ends = [n + self.size for n in self.begin]
        mask = torch.zeros(
            len(ends), 1, self.size - self.start, max(ends), dtype=torch.bool, device=self.cache.length.device
        )
        for row, n, end, visible in zip(mask[:, 0], self.begin, ends, self.visible, strict=True):
            row[:, :n] = True
            row[:, n:end] = True if visible is None else visible
        self.mask = mask  # [B,1,W,S]: which slots each new node sees

    def masks(self, types: Any) -> dict[str, Tensor | None]:
        """What modules take in place of the mask that they would make, for each type of layer."""
        return {kind: self.mask if kind in LAYERS else None for kind in sorted(set(types))}

    def keys(self, layer: int, k: Tensor) -> Tensor:
        """Cache an indexer's keys [B,W,D] of the new nodes -> those of all slots [B,S,D]; later ones are not seen."""
        index, new = self.layers + layer, k[:, None]
        self.cache.write(index, new, new[..., :0], [n + self.start for n in self.begin])
        rows = [self.cache.read(index, b)[0][0, : n + self.size] for b, n in enumerate(self.begin)]
        self._scored = True
        return rows[0][None] if len(rows) == 1 else torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def ordered(self) -> TorchFunctionMode:
        """Inside it indexers choose by `first_of_best`."""
        return _Ordered(self)

    def take_scores(self) -> bool:
        """Whether a top-k that is about to run is an indexer's. It is the first one after an indexer has read keys."""
        scored, self._scored = self._scored, False
        return scored

    def choose(self, layer: int, slots: Tensor) -> None:
        """A layer's attention reads only these slots [B,W,k] of those that each node sees."""
        self.slots[layer] = slots.long()

    def chosen(self, layer: int, b: int) -> Tensor:
        """[W,S] which slots of row b each node's indexer chose, among those that it sees."""
        if layer not in self.slots:
            raise InputError(f"layer {layer} has an indexer that did not choose: longdraft cannot run this model")
        mask = self.mask[b, 0]
        picked = torch.zeros_like(mask).scatter_(1, self.slots[layer][b], True) & mask
        return picked[:, : self.begin[b] + self.size]

    def narrows(self, layer: int) -> bool:
        return layer in self.indexed

    def groups(
        self, layer: int, b: int, k: Tensor, v: Tensor, view: KVView | None, q: Tensor, whole: bool
    ) -> list[list[ops.Segment]]:
        """What row b's queries q [H,W,D] read of k, v [K,S,D]: what was chosen, and of that what the view shows.

        One list for all key heads, or one for each where a view shows them different slots. A query that would read
        nothing reads what the view shows. whole: segments keep the slots that no query reads.
        """
        chosen, end, visible = self.chosen(layer, b), self.begin[b] + self.size, self.visible[b]
        if view is None:
            every = ops.Segment(k[:, :end], v[:, :end], chosen)
            return [[every if whole else _read(every, chosen)]]
        shown = view.segments(layer, b, k, v, end, visible, q)
        slots = _slots(view, layer, b, k, end, visible, q)
        if all(len(n) == 1 for n in slots):
            return [_intersection(shown, [n[0] for n in slots], chosen)]
        by_head = ([ops.Segment(s.k[h : h + 1], s.v[h : h + 1], s.visible) for s in shown] for h in range(len(k)))
        return [_intersection(head, [n[min(h, len(n) - 1)] for n in slots], chosen) for h, head in enumerate(by_head)]


def attend_in_groups(
    attend: Callable[..., ops.Attended],
    q: Tensor,
    groups: list[list[ops.Segment]],
    scale: float,
    softcap: float | None,
    sink: Tensor | None,
    keep: list[int] | None,
) -> ops.Attended:
    """`attend`, as ops.attend, of queries q [H,W,D] whose groups of key heads read segments of their own."""
    if len(groups) == 1:
        return attend(q, groups[0], scale, softcap, sink, keep)
    sinks = [None] * len(groups) if sink is None else sink.chunk(len(groups))
    heads = zip(q.chunk(len(groups)), groups, sinks, strict=True)
    parts = [attend(rows, segments, scale, softcap, s, keep) for rows, segments, s in heads]
    logits, weights = [p.logits for p in parts], [p.weights for p in parts]
    return ops.Attended(torch.cat([p.out for p in parts], 1), _joined(logits), _joined(weights))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [x for x in parts if x is not None]
    return torch.cat(present) if present else None


def _slots(
    view: KVView, layer: int, b: int, k: Tensor, end: int, visible: Tensor | None, q: Tensor
) -> list[Tensor]:
    """The slots [K|1,P] of each segment that the view shows of k [K,S,D]."""
    numbers = torch.arange(end, device=k.device)
    if not is_indexable(view):
        each = numbers[None, :, None].expand(len(k), -1, -1)
        return [s.v[..., 0] for s in view.segments(layer, b, k, each, end, visible, q)]
    selected = view.slots(layer, b)
    tail = numbers[int(view.tail_start[b]) :][None]
    return [selected.view(-1, selected.shape[-1]), tail] if selected.shape[-1] else [tail]


def _intersection(shown: list[ops.Segment], slots: list[Tensor], chosen: Tensor) -> list[ops.Segment]:
    """Segments of which a query reads only the slots that it chose [W,S], or all that it sees if it chose none."""
    seen = [ops.full_mask(s, len(chosen)) for s in shown]
    both = [mask & chosen[:, n] for mask, n in zip(seen, slots, strict=True)]
    none = ~torch.cat(both, 1).any(1, keepdim=True)
    return [ops.Segment(s.k, s.v, b | (mask & none)) for s, mask, b in zip(shown, seen, both, strict=True)]


class _Ordered(TorchFunctionMode):
    """Replaces the top-k of indexers, whose order of equal scores depends on the shape of what it is given."""

    def __init__(self, choice: Choice):
        super().__init__()
        self.choice = choice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TOPK and self.choice.take_scores():
            return _first_of_best(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _first_of_best(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """torch.topk over the last dimension, unsorted; of equal scores those of lower indices, as on a GPU.

    Scores are sums of rectified products, so many are equal: exactly zero.
    """
    values = scores.topk(k, dim).values
    least = values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    kept = above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    indices = kept.nonzero()[:, -1].view(*scores.shape[:-1], k)
    return torch.return_types.topk((scores.gather(-1, indices), indices))


def _read(segment: ops.Segment, chosen: Tensor) -> ops.Segment:
    """The segment without the slots that no query chose [W,S], where these are many."""
    read = chosen.any(0).nonzero()[:, 0]
    if 2 * len(read) > chosen.shape[1]:
        return segment
    mask = chosen[:, read]
    return ops.Segment(segment.k[:, read], segment.v[:, read], None if bool(mask.all()) else mask)
