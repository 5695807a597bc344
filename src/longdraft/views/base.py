"""A view of the cache is data: chosen slots, and everything from a slot on. Policies choose; nothing here decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.kv_view import KVView
from longdraft.core.sequences import without
from longdraft.models.lm import LM
from longdraft.ops import Compact, Segment, refill

T = TypeVar("T")
Table = dict[tuple[int, int], T]  # by layer and row


@dataclass
class View:
    """picks [L|1,B,P] slots, ascending (-1 pads the end), below since [B]; all slots from `since` on are seen.

    picks [L|1,B,K|1,P]: each key head has its own, as many as its neighbours. layers maps a model's layer to its place
    in picks (None: one choice serves all). The picked keys are copied together once per row and layer, when a draft
    first reads them: into copies of its own, or into those of the view it follows, which must not be read any more.
    """

    indexable: ClassVar[bool] = True
    indices: Tensor
    tail_start: Tensor
    layers: dict[int, int] | None = None
    copies: Table[Compact] = field(default_factory=dict)
    copied: Table[tuple[Tensor, Tensor] | None] = field(default_factory=dict)
    _tail_start: list[int] = field(init=False)
    _counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._tail_start = self.tail_start.tolist()
        one = self.indices[0] if self.indices.dim() == 3 else self.indices[0, :, 0]
        self._counts = (one >= 0).sum(-1).tolist()

    def compact(self, layer: int, b: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
        """The picked keys and values of row b, side by side, from its k, v [K,S,D]; None where nothing is picked."""
        if (layer, b) not in self.copied:
            self.copy([(layer, b, k, v)])
        return self.copied[layer, b]

    def copy(self, rows: list[tuple[int, int, Tensor, Tensor]]) -> None:
        """`compact` of many (layer, row, k, v) together."""
        places, asked = [], []
        for layer, b, k, v in rows:
            if self._counts[b]:
                slots = self.indices[0 if self.layers is None else self.layers[layer], b, ..., : self._counts[b]]
                places.append((layer, b))
                asked.append((self.copies.setdefault((layer, b), Compact()), k, v, slots))
        copies = dict(zip(places, refill(asked), strict=True))
        self.copied.update({(layer, b): copies.get((layer, b)) for layer, b, *_ in rows})

    def without(self, row: int) -> View:
        """The view of the rows that remain when this one leaves and the last one takes its place, copies included."""
        indices, tail_start = without(self.indices.transpose(0, 1), row).transpose(0, 1), without(self.tail_start, row)
        copies, copied = (
            table_without(self.copies, row, len(tail_start)),
            table_without(self.copied, row, len(tail_start)),
        )
        return View(indices, tail_start, self.layers, copies, copied)

    def seen(self, lengths: list[int]) -> list[int]:
        """How many of each row's committed slots it shows."""
        return [count + n - at for count, n, at in zip(self._counts, lengths, self._tail_start, strict=True)]

    def segments(
        self, layer: int, b: int, k: Tensor, v: Tensor, end: int, visible: Tensor | None, q: Tensor | None = None
    ) -> list[Segment]:
        """What row b sees in this layer of k, v [K,S,D] when its scratch ends at slot `end`, whatever its queries q."""
        at, selected = self._tail_start[b], self.compact(layer, b, k, v)
        tail = Segment(k[:, at:end], v[:, at:end], visible)
        return [tail] if selected is None else [Segment(*selected), tail]


def table_without(table: Table[T], row: int, last: int) -> Table[T]:
    """The table when `row` has left and row `last` has taken its place."""
    return {(layer, row if b == last else b): x for (layer, b), x in table.items() if b != row}


class Policy:
    """Chooses views. `wants` is what a verify pass must leave behind for `update`; `view` is asked before each draft.

    `update` sees the cache after the commit. A policy starts knowing nothing: its first view may be everything.
    """

    def captures(self) -> CaptureSpec:
        return CaptureSpec()

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        """`cache` is the model's own. When a view is asked for, it holds all but the last few of each row's tokens
        [B,N], and only then may the model be run, on scratch slots: no committed one may change.

        `tokens` grows in place with the text. There may be no rows yet.
        """

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Row `row`, the last one, is new; the others go on. See Drafter.enter. By default everything starts anew."""
        self.start(model, tokens, cache)

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Row `row` has left, and the last one may have taken its place. See Drafter.leave."""
        self.start(model, tokens, cache)

    def update(self, cache: KVCache, captured: Captures) -> None: ...

    def seen(self, lengths: list[int]) -> list[int]:
        """About how many of each row's committed slots its view shows: what a draft under it reads."""
        return lengths

    def view(self, cache: KVCache) -> KVView | None:
        """None: everything is seen."""
        raise NotImplementedError


class Full(Policy):
    """Everything is seen."""

    def view(self, cache: KVCache) -> View | None:
        return None


def budget_of(length: int, keep_ratio: float, min_budget: int) -> int:
    """How many slots a view may pick of a context: ratio of it, at least `floor`, at most all (Vegas sec. 3)."""
    return min(
        length, max(min_budget, ceil(keep_ratio * length - 1e-9))
    )  # 0.07 * 400 is 28, though floats say a little more


def pad_rows(
    rows: list[Tensor], tail_start: list[int], device: torch.device, layers: dict[int, int] | None = None
) -> View:
    """Per-row picks [L,P_b] -> a View; a row that picks nothing and has since 0 sees everything."""
    most = max(r.shape[-1] for r in rows)
    short = [most - r.shape[-1] for r in rows]
    rows = [torch.nn.functional.pad(r, (0, n), value=-1) if n else r for r, n in zip(rows, short, strict=True)]
    indices = torch.stack(rows, 1) if len(rows) > 1 else rows[0][:, None]
    return View(indices, torch.tensor(tail_start, device=device), layers)
