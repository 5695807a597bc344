"""Layers whose indexer chooses the keys that each query reads (DeepSeek V3.2, sec. 2.1)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from longdraft import ops
from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Attend, Call, Feature, Groups
from longdraft.backends.features.past import past_of
from longdraft.core import KVCache, KVView, is_indexable
from longdraft.errors import InputError

# layer types; the second is Transformers 5.17's
INDEXED = {
    "indexed_attention",
    "deepseek_sparse_attention",
}
LAYERS = {*INDEXED, "minimax_m3_sparse"}  # MiniMax M3 chooses blocks of positions
TOPK = {torch.topk, Tensor.topk}
MASKING = {Tensor.masked_fill}

# fields of configs whose indexers choose among pools of keys
POOLS = ("index_kpool", "indexer_compress_ratio")


class Indexer(Feature):
    """layers: those that read only what an indexer chooses. count: of the model's layers."""

    models = "DeepSeek V3.2, GLM-5, MiniMax M3, A.X K2, HY 4, dots3"
    computed = "each node selects from its own path; one index key per token is cached"
    layer_types = frozenset(LAYERS)

    def __init__(self, layers: set[int], count: int, types: list[str]):
        self.layers = layers
        self.count = count
        self.types = types

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        c = hf.config.get_text_config()
        types: list[str] = getattr(c, "layer_types", None) or []
        layers = {n for n, kind in enumerate(types) if kind in LAYERS}
        return cls(layers, c.num_hidden_layers, types) if layers else None

    @classmethod
    def refuse(cls, config: Any) -> str | None:
        """Pools of keys that lie side by side differ between the paths of a tree."""
        c = config.get_text_config()
        if any((getattr(c, name, None) or 1) > 1 for name in POOLS):
            return (
                "has an indexer that chooses among pools of keys, which would mix the branches of a"
                " tree"
            )
        return None

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        assert p.tree is not None and p.cache is not None
        visible = [None if bool(m.all()) else m for m in p.tree.mask[:, p.start :]]
        begin: list[int] = p.cache.length.tolist()
        depth = p.tree.depth
        choice = Choice(p.cache, begin, p.start, depth, visible, self.count)
        past_of(p).choice = choice
        p.arguments |= choice.arguments(self.types)
        p.kept[self] = choice
        with Intercepting(choice.replaced):
            yield

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        choice: Choice | None = current().kept.get(self)
        if choice is None:
            return proceed(call)
        given = call.arguments
        if call.mask is choice.mask and "indices" in given:
            choice.choose(call.module.layer_idx, given.pop("indices"))
            call.mask = None
        if "block_indices" in given:
            size = call.module.indexer.block_size
            choice.choose_blocks(call.module.layer_idx, given.pop("block_indices"), size)
        return proceed(call)

    def groups(self, proceed: Groups, layer: int, b: int, q: Tensor) -> list[list[ops.Segment]]:
        if layer not in self.layers:
            return proceed(layer, b, q)
        p = current()
        choice: Choice = p.kept[self]
        eager: Any = p.attention
        row = choice.cache.stored_row(layer, b)
        return choice.groups(layer, b, row, eager.view, q, eager.is_scored(layer))


@dataclass
class Choice:
    """The tokens that the indexers of one pass choose for each node: only committed tokens and the
    node's own path.

    Keys of the indexer of layer n are layer n + `layers` of the cache, without values, so they are
    committed and rolled back with the layer's own keys. The slots of a path ascend with its
    positions, so that an order by slots is one by positions, whatever other nodes lie between them.
    depth [B,size]. visible: per row [W,size], which nodes each new node sees; None: all. masks
    {layer: per row [K|1,W,S]}, what was chosen.
    """

    cache: KVCache
    begin: list[int]  # committed length of each row
    start: int  # the first new node
    depth: Tensor
    visible: list[Tensor | None]
    layers: int
    masks: dict[int, list[Tensor]] = field(default_factory=dict)
    _scores: str = ""  # what the indexer that reads its keys now scores, "slots" or "blocks"

    def __post_init__(self) -> None:
        self.size = self.depth.shape[1]
        self.ends = [n + self.size for n in self.begin]
        last = int(self.depth.max())
        self.positions = max(
            max(n + last + 1, end) for n, end in zip(self.begin, self.ends, strict=True)
        )
        shape = len(self.ends), 1, self.size - self.start, max(self.ends)
        self.mask = torch.zeros(shape, dtype=torch.bool, device=self.depth.device)
        for row, n, end, visible in zip(
            self.mask[:, 0], self.begin, self.ends, self.visible, strict=True
        ):
            row[:, :n] = True
            row[:, n:end] = True if visible is None else visible

    def keys(self, layer: int, k: Tensor) -> Tensor:
        """Cache an indexer's keys [B,W,D] of the new nodes -> those of all slots [B,S,D]."""
        self._scores = "slots"
        return self._cached(layer, k)

    def block_keys(self, layer: int, k: Tensor) -> Tensor:
        """`keys` of an indexer that scores blocks: [B,1,W,D] -> [B,1,S,D], with room for every
        node's position.
        """
        cached = self._cached(layer, k[:, 0])[:, None]
        self._scores = "blocks"
        return F.pad(cached, (0, 0, 0, self.positions - cached.shape[2]))

    def _cached(self, layer: int, k: Tensor) -> Tensor:
        index = self.layers + layer
        new = k[:, None]
        self.cache.write(index, new, new[..., :0], [n + self.start for n in self.begin])
        rows = [self.cache.read(index, b)[0][0, :end] for b, end in enumerate(self.ends)]
        return (
            rows[0][None]
            if len(rows) == 1
            else torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        )

    def arguments(self, types: Any) -> dict[str, Any]:
        """Arguments of the model's forward besides the nodes: masks [B,1,W,S] in place of those
        that it would make.
        """
        masks = {kind: self.mask if kind in INDEXED else None for kind in sorted(set(types))}
        return {"attention_mask": masks}

    def replaced(self, func: Any) -> Callable[..., Any] | None:
        """Functions that run in place of the torch functions that an indexer calls after it has
        read its keys.
        """
        if self._scores == "blocks" and func in MASKING:
            self._scores = "slots"
            return self.by_position
        if self._scores and func in TOPK:
            if self._scores == "blocks":
                raise InputError(
                    "this version of Transformers does not mask an indexer's scores: use "
                    "another one"
                )
            self._scores = ""
            return first_of_best
        return None

    def by_position(self, scores: Tensor, *args: Any) -> Tensor:
        """Scores [B,H,W,S] by slots -> by positions, -inf where a node's path has none. Replaces a
        mask by slots.
        """
        order = torch.arange(scores.shape[-1], device=scores.device).repeat(
            len(scores), scores.shape[2], 1
        )
        on_path = torch.zeros_like(order, dtype=torch.bool)
        for b, n in enumerate(self.begin):
            on_path[b, :, :n] = True
            node, seen = self.mask[b, 0, :, n : n + self.size].nonzero(as_tuple=True)
            position = n + self.depth[b, seen]
            order[b, node, position] = n + seen
            on_path[b, node, position] = True
        by_position = scores.gather(-1, order[:, None].expand_as(scores))
        return by_position.masked_fill(~on_path[:, None], float("-inf"))

    def choose(self, layer: int, slots: Tensor) -> None:
        """A layer's attention reads only these slots [B,W,k] of those that each node sees."""
        picked = torch.zeros_like(self.mask[:, 0]).scatter_(2, slots.long(), True)
        self._choose(layer, picked[:, None])

    def choose_blocks(self, layer: int, blocks: Tensor, size: int) -> None:
        """A layer's key heads read only these blocks [B,K,W,k] of this many positions each; -1:
        none.
        """
        count = self.positions // size + 1
        picked = torch.zeros(*blocks.shape[:3], count + 1, dtype=torch.bool, device=blocks.device)
        picked.scatter_(3, blocks.long() + 1, True)
        slot = torch.arange(self.mask.shape[3], device=blocks.device)
        rows = []
        for b, n in enumerate(self.begin):
            position = slot.clone()
            position[n : n + self.size] = n + self.depth[b]
            rows.append(picked[b, :, :, position // size + 1])
        self._choose(layer, torch.stack(rows))

    def _choose(self, layer: int, picked: Tensor) -> None:
        """picked [B,K|1,W,S]."""
        seen = picked & self.mask
        self.masks[layer] = [seen[b, ..., :end] for b, end in enumerate(self.ends)]

    def chosen(self, layer: int, b: int) -> Tensor:
        """[K|1,W,S] which slots of row b each node's indexer chose, among those that it sees."""
        if layer not in self.masks:
            raise InputError(
                f"layer {layer} has an indexer that did not choose: longdraft cannot run this model"
            )
        return self.masks[layer][b]

    def groups(
        self, layer: int, b: int, row: ops.StoredRow, view: KVView | None, q: Tensor, whole: bool
    ) -> list[list[ops.Segment]]:
        """The keys and values that row b's queries q [H,W,D] read of those stored: the chosen ones
        that the view shows.

        One list for all key heads, or one for each where a view shows them different slots. A query
        that would read nothing reads what the view shows. whole: segments keep the slots that no
        query reads.
        """
        chosen = self.chosen(layer, b)
        end = self.ends[b]
        visible = self.visible[b]
        if view is None:
            k, v = row.part(0, end).numbers()
            if len(chosen) == 1:
                return [[_read(k, v, chosen[0], whole)]]
            heads = zip(k[:, None], v[:, None], chosen, strict=True)
            return [[_read(key, value, mask, whole)] for key, value, mask in heads]
        shown = view.segments(layer, b, row, end, visible, q)
        slots = _slots(view, layer, b, row, end, visible, q)
        if len(chosen) == 1 and all(len(n) == 1 for n in slots):
            return [_intersection(shown, [n[0] for n in slots], chosen[0])]
        by_head = (
            [ops.Segment(s.k[h : h + 1], s.v[h : h + 1], s.visible) for s in shown]
            for h in range(row.heads)
        )
        return [
            _intersection(head, [_of_head(n, h) for n in slots], _of_head(chosen, h))
            for h, head in enumerate(by_head)
        ]


def attend_in_groups(
    attend: Callable[..., ops.Attended],
    q: Tensor,
    groups: list[list[ops.Segment]],
    scale: float,
    softcap: float | None,
    sink: Tensor | None,
    keep: list[int] | None,
) -> ops.Attended:
    """`attend`, as ops.attend, of queries q [H,W,D] whose groups of key heads read separate
    segments.
    """
    if len(groups) == 1:
        return attend(q, groups[0], scale, softcap, sink, keep)
    sinks = [None] * len(groups) if sink is None else sink.chunk(len(groups))
    heads = zip(q.chunk(len(groups)), groups, sinks, strict=True)
    parts = [attend(rows, segments, scale, softcap, s, keep) for rows, segments, s in heads]
    logits = [p.logits for p in parts]
    weights = [p.weights for p in parts]
    return ops.Attended(torch.cat([p.out for p in parts], 1), _joined(logits), _joined(weights))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [x for x in parts if x is not None]
    return torch.cat(present) if present else None


def _slots(
    view: KVView,
    layer: int,
    b: int,
    row: ops.StoredRow,
    end: int,
    visible: Tensor | None,
    q: Tensor,
) -> list[Tensor]:
    """The slots [K|1,P] of each segment that the view shows of a row."""
    numbers = torch.arange(end, device=row.k.device)
    if not is_indexable(view):
        each = ops.StoredRow(row.keys(), numbers[None, :, None].expand(row.heads, -1, -1))
        return [s.v[..., 0] for s in view.segments(layer, b, each, end, visible, q)]
    assert view is not None
    selected = view.slots(layer, b)
    tail = numbers[int(view.tail_start[b]) :][None]
    return [selected.view(-1, selected.shape[-1]), tail] if selected.shape[-1] else [tail]


def _intersection(
    shown: list[ops.Segment], slots: list[Tensor], chosen: Tensor
) -> list[ops.Segment]:
    """Segments of which a query reads only the slots that it chose [W,S], or all that it sees if it
    chose none.
    """
    seen = [ops.full_mask(s, len(chosen)) for s in shown]
    both = [mask & chosen[:, n] for mask, n in zip(seen, slots, strict=True)]
    none = ~torch.cat(both, 1).any(1, keepdim=True)
    return [
        ops.Segment(s.k, s.v, b | (mask & none))
        for s, mask, b in zip(shown, seen, both, strict=True)
    ]


def _of_head(x: Tensor, head: int) -> Tensor:
    """x [K|1,...] of one key head."""
    return x[min(head, len(x) - 1)]


class Intercepting(TorchFunctionMode):
    """Replaces the top-k of indexers, whose order of equal scores depends on the shape of what it
    is given.

    And masks by slots, where an indexer takes a slot for a position.
    """

    def __init__(self, replaced: Callable[[Any], Callable[..., Any] | None]):
        super().__init__()
        self._replaced = replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._replaced(func) or func)(*args, **(kwargs or {}))


def first_of_best(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """torch.topk over the last dimension, unsorted; of equal scores those of lower indices, as on a
    GPU.

    Scores are sums of rectified products, so many of them are equal: exactly zero.
    """
    if not k:
        return scores.topk(k, dim)
    values = scores.topk(k, dim).values
    least = values.amin(-1, keepdim=True)
    above = scores > least
    equal = scores == least
    kept = above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    indices = kept.nonzero()[:, -1].view(*scores.shape[:-1], k)
    return torch.return_types.topk((scores.gather(-1, indices), indices))


def _read(k: Tensor, v: Tensor, chosen: Tensor, whole: bool) -> ops.Segment:
    """k, v [K,S,D], of which each query reads what it chose [W,S]; without slots that none chose if
    these are many.
    """
    read = chosen.any(0).nonzero()[:, 0]
    if whole or 2 * len(read) > chosen.shape[1]:
        return ops.Segment(k, v, chosen)
    mask = chosen[:, read]
    return ops.Segment(k[:, read], v[:, read], None if bool(mask.all()) else mask)
