"""A view of the cache as data, selected slots and every slot of the tail, and its policies.

Policies make the selections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, KVCache, KVView, without
from longdraft.models.lm import LM
from longdraft.ops import Coding, Compact, Segment, StoredRow, refill

T = TypeVar("T")
ByLayerAndRow = dict[tuple[int, int], T]


@dataclass
class View:
    """Shows the selected slots `indices`, and every slot from tail_start [B] on.

    The selected slots lie below tail_start.
    indices [L|1,B,P]: ascending, with -1 for padding at the end; or [L|1,B,K|1,P] with a selection
    per key head, of equal lengths. layers maps a layer of the model to its entry in indices (None:
    one selection for all layers).
    The selected keys and values are copied side by side, once per layer and row, when a draft first
    reads them.
    copies: the buffers, which may be inherited from the previous view; only one of the two views
    may read them.
    copied: what this view has copied into them; None where nothing is selected.
    bits: 4 or 8 if the copies are codes of the numbers (ops/coded.py); 0: as the cache stores them.
    """

    indexable: ClassVar[Literal[True]] = True
    indices: Tensor
    tail_start: Tensor
    layers: dict[int, int] | None = None
    copies: ByLayerAndRow[Compact] = field(default_factory=dict)
    copied: ByLayerAndRow[tuple[Tensor, Tensor] | None] = field(default_factory=dict)
    bits: int = 0
    starts: list[int] = field(init=False)  # tail_start
    counts: list[int] = field(init=False)  # of each row's selected slots

    def __post_init__(self) -> None:
        self.starts = self.tail_start.tolist()
        slots = self.indices[0] if self.indices.dim() == 3 else self.indices[0, :, 0]
        self.counts = (slots >= 0).sum(-1).tolist()

    def compact(self, layer: int, b: int, row: StoredRow) -> tuple[Tensor, Tensor] | None:
        """The selected keys and values of row b, side by side, from what the cache stores of it.

        None if nothing is selected. Codes are decoded at each call.
        """
        if (layer, b) not in self.copied:
            self.copy([(layer, b, row)])
        copied = self.copied[layer, b]
        if copied is None:
            return None
        offset = row.coding.key_offset if row.coding else None
        own = Coding(self.bits, row.dim, row.value_dim, row.dtype, offset)
        coding = row.coding if self.bits in (0, row.bits) else own
        return StoredRow(*copied, coding).numbers()

    def slots(self, layer: int, b: int) -> Tensor:
        """[P] or [K|1,P]: the slots of row b that are selected in this layer."""
        entry = 0 if self.layers is None else self.layers[layer]
        return self.indices[entry, b, ..., : self.counts[b]]

    def copy(self, rows: list[tuple[int, int, StoredRow]]) -> None:
        """Copy the selected slots of many (layer, b, row), in one kernel call where possible."""
        keys = []
        requests = []
        for layer, b, row in rows:
            if self.counts[b]:
                keys.append((layer, b))
                copies = self.copies.setdefault((layer, b), Compact(self.bits))
                requests.append((copies, row, self.slots(layer, b)))
        new = dict(zip(keys, refill(requests), strict=True))
        self.copied.update({(layer, b): new.get((layer, b)) for layer, b, *_ in rows})

    def without(self, row: int) -> View:
        """The view without row `row`, whose place the last row has taken, with the copies."""
        indices = without(self.indices.transpose(0, 1), row).transpose(0, 1)
        tail_start = without(self.tail_start, row)
        copies = without_row(self.copies, row, len(tail_start))
        copied = without_row(self.copied, row, len(tail_start))
        return View(indices, tail_start, self.layers, copies, copied, self.bits)

    def seen(self, lengths: list[int]) -> list[int]:
        """The number of each row's `lengths` committed slots that it shows."""
        return [
            count + n - start
            for count, n, start in zip(self.counts, lengths, self.starts, strict=True)
        ]

    def segments(
        self,
        layer: int,
        b: int,
        row: StoredRow,
        end: int,
        visible: Tensor | None,
        q: Tensor | None = None,
    ) -> list[Segment]:
        """The part of what the cache stores of row b that it sees in this layer.

        Its scratch slots end at `end`; q is not used.
        """
        start = self.starts[b]
        selected = self.compact(layer, b, row)
        if visible is not None:
            # a drafter that lags behind the view has nodes before its tail
            visible = visible[:, -(end - start) :]
        tail = Segment(*row.part(start, end).numbers(), visible)
        return [tail] if selected is None else [Segment(*selected), tail]


def without_row(table: ByLayerAndRow[T], row: int, last: int) -> ByLayerAndRow[T]:
    """The table after row `row` has left and row `last` has taken its place."""
    kept: ByLayerAndRow[T] = {}
    for (layer, b), entry in table.items():
        if b != row:
            kept[layer, row if b == last else b] = entry
    return kept


class Policy:
    """Selects the slots that drafts read.

    `view` is called before each draft; `update` after each verify pass and its commit. A policy
    starts without information, so its first view may show everything. It sets `_view` or overrides
    `view`.
    """

    _view: View | None = None
    # acceptance of a target's drafts under it, greedy and sampled
    usual: tuple[float, float] = (0.85, 0.75)
    lasts: int = 1  # steps for which a view stays that attention scores have chosen
    renews: bool = False  # whether `stay` changes that
    bits: int = 0  # of a number of a key that a view selects; 0: unchanged

    def captures(self) -> CaptureSpec:
        """The scores that the next verify pass must keep for `update`."""
        return CaptureSpec()

    def choosing(self) -> CaptureSpec:
        """The request of `captures` for a pass by which the next view is chosen."""
        return self.captures()

    def stay(self, steps: int) -> None:
        """Let views that are chosen from now on stay for this many steps.

        Only where `renews` says that this can be set.
        """

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        """Begin with these rows; there may be none yet.

        tokens [B,N] grow in place. `cache` is the model's own. When `view` is called, the cache
        holds all but the last few of each row's tokens. Only then
        may the policy run the model, on scratch slots: it may not change a committed slot.
        """

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add row `row`, the last one; see Drafter.enter.

        The default is to start again with all rows.
        """
        self.start(model, tokens, cache)

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Remove row `row`, whose place the last row has taken; see Drafter.leave."""
        self.start(model, tokens, cache)

    def ready(self, model: LM, cache: KVCache) -> None:
        """Do what a text needs once and what may take long.

        The first draft does it if this was not called.
        """

    def update(self, cache: KVCache, captured: Captures) -> None:
        """Read the scores of a verify pass.

        `cache` is the cache after the commit; `captured` is what the pass kept.
        """

    def seen(self, lengths: list[int]) -> list[int]:
        """The approximate number of each row's `lengths` committed slots that the view shows.

        For estimates of a draft's cost.
        """
        return lengths if self._view is None else self._view.seen(lengths)

    def coded(self, lengths: list[int]) -> list[int]:
        """The number of `seen` slots that are read as codes of this many bits."""
        return [0] * len(lengths)

    def view(self, cache: KVCache) -> KVView | None:
        """The view for the next draft; None shows everything."""
        return self._view


class Full(Policy):
    """Shows everything."""

    usual = (0.97, 0.95)


def budget_of(length: int, keep_ratio: float, min_budget: int) -> int:
    """The number of slots of a context that a view may show (Vegas sec. 3).

    keep_ratio * length, but at least min_budget.
    """
    wanted = ceil(keep_ratio * length - 1e-9)  # as floats, 0.07 * 400 is a little more than 28
    return min(length, max(min_budget, wanted))


def pad_rows(
    rows: list[Tensor], tail_start: list[int], layers: dict[int, int] | None = None
) -> View:
    """A View of each row's indices [L,P_b].

    A row with no indices and tail_start 0 sees everything.
    """
    most = max(r.shape[-1] for r in rows)
    short = [most - r.shape[-1] for r in rows]
    padded = list[Tensor]()
    for row, n in zip(rows, short, strict=True):
        padded.append(torch.nn.functional.pad(row, (0, n), value=-1) if n else row)
    indices = torch.stack(padded, 1) if len(padded) > 1 else padded[0][:, None]
    return View(indices, torch.tensor(tail_start, device=indices.device), layers)
