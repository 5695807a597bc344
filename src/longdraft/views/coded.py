"""Views under which drafts read codes of 4 or 8 bits in place of keys and values (QuantSpec sec.

4).
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from longdraft.core import Captures, CaptureSpec, KVCache
from longdraft.models.lm import LM
from longdraft.ops import Compact
from longdraft.views.base import ByLayerAndRow, Policy, View, pad_rows, without_row

# the share of acceptance that drafts keep which read codes of this many bits
SHARES = {8: 1.0, 4: 0.97}


class Coded(Policy):
    """Shows what another policy shows, as codes of this many bits, except each row's latest slots.

    policy: one whose views are `View` or None. Of the slots that its view shows from tail_start on,
    those before the last `recent` to 2 * recent committed slots are read as codes too, so the codes
    of a growing text are extended by `recent` slots at a time. A view that selects for each key
    head keeps its tail unchanged. A slot is encoded once it is committed; the cache itself is not
    changed.
    """

    def __init__(self, policy: Policy, bits: int, recent: int = 64):
        self.policy = policy
        self.bits = bits
        self.recent = recent
        self.usual = SHARES[bits] * policy.usual[0], SHARES[bits] * policy.usual[1]
        self.lasts = policy.lasts
        self.renews = policy.renews
        self._forget()

    def _forget(self) -> None:
        self._copies: ByLayerAndRow[Compact] = {}
        self._view = None
        self._before = None  # the other policy's view, which `_view` was made from

    def stay(self, steps: int) -> None:
        self.policy.stay(steps)
        self.lasts = self.policy.lasts

    def choosing(self) -> CaptureSpec:
        return self.policy.choosing()

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def start(self, model: LM, tokens: Tensor, cache: KVCache) -> None:
        self.policy.start(model, tokens, cache)
        self._forget()

    def enter(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        """Add a row; the codes of the other rows are kept."""
        self.policy.enter(model, tokens, cache, row)
        self._view = None

    def leave(self, model: LM, tokens: Tensor, cache: KVCache, row: int) -> None:
        self.policy.leave(model, tokens, cache, row)
        self._copies = without_row(self._copies, row, len(cache.length))
        self._view = None

    def ready(self, model: LM, cache: KVCache) -> None:
        """Encode the rows that have no codes yet."""
        self.policy.ready(model, cache)
        view = self.view(cache)
        if view is None:
            return
        rows = [b for b, count in enumerate(view.counts) if count]
        full = set(model.architecture.with_keys) - set(model.windows)
        layers = cache.layers if view.layers is None else view.layers
        places = product((layer for layer in layers if layer in full), rows)
        new = [place for place in places if place not in self._copies]
        if new:
            view.copy([(layer, b, cache.stored_row(layer, b)) for layer, b in new])

    def update(self, cache: KVCache, captured: Captures) -> None:
        self.policy.update(cache, captured)

    def seen(self, lengths: list[int]) -> list[int]:
        return self.policy.seen(lengths)

    def coded(self, lengths: list[int]) -> list[int]:
        if self._view is not None and len(self._view.counts) == len(lengths):
            return self._view.counts
        return [max(n - self.recent, 0) for n in self.seen(lengths)]  # before there is a view

    def view(self, cache: KVCache) -> View | None:
        before = self.policy.view(cache)
        lengths = cache.length.tolist()
        if before is not None and not isinstance(before, View):
            raise TypeError(
                f"{type(before).__name__} is not a list of slots, so there is nothing to encode"
            )
        same = self._view is not None and before is self._before
        known = self._view if same else None
        self._before = before
        if before is None:  # everything is shown
            slots = torch.empty(1, len(lengths), 0, dtype=torch.long, device=cache.length.device)
            before = View(slots, torch.zeros_like(cache.length))
        starts = [self._start(before, b, n) for b, n in enumerate(lengths)]
        if known is None or starts != known.starts:
            self._view = self._coded(before, starts)
            self._view.copies = self._copies
            self._view.bits = self.bits
        # rows that did not change are copied already
        if known is not None and self._view is not None:
            pairs = zip(known.starts, starts, strict=True)
            rows = {b for b, (old, new) in enumerate(pairs) if old == new}
            self._view.copied |= {key: kv for key, kv in known.copied.items() if key[1] in rows}
        return self._view

    def _start(self, view: View, b: int, length: int) -> int:
        """The first slot of row b that is read unchanged from the cache."""
        end = (length - self.recent) // self.recent * self.recent
        return view.starts[b] if view.indices.dim() == 4 else max(view.starts[b], end)

    def _coded(self, view: View, starts: list[int]) -> View:
        """The view, with all slots before `starts` selected too."""
        if starts == view.starts:
            return View(view.indices, view.tail_start, view.layers)
        rows = []
        for b, (old, new) in enumerate(zip(view.starts, starts, strict=True)):
            selected = view.indices[:, b, : view.counts[b]]
            more = torch.arange(old, new, device=view.indices.device)
            rows.append(torch.cat([selected, more.expand(len(selected), -1)], -1))
        return pad_rows(rows, starts, view.layers)
