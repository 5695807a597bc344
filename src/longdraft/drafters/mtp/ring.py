"""The keys and values of an MTP layer: those of a text's first and latest pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core import KVCache
from longdraft.core.draft_layers import DraftKeys
from longdraft.ops import Segment, attend


class MtpRing:
    """Pair t is in slot t if t < sink, else in slot sink + (t - sink) % window; held [rows,slots]:
    each slot's pair.

    Pair t is the feature of token t with token t+1. A slot without a pair holds -1. The slots
    behind are scratch: what a pass runs is there until `keep` moves it, so a refused draft never
    reaches a slot. A slot's key is rotated for its own position and stays unchanged. Neither memory
    nor what a pass reads grows with the text.
    """

    def __init__(self, rows: int, sink: int, window: int, device: torch.device):
        self.sink = sink
        self.window = window
        self.slots = sink + window
        self.held = torch.full((rows, self.slots), -1, device=device)
        self.cache = KVCache(rows, self.slots + 64, device)
        self.cache.length += self.slots

    def clear(self, row: int) -> None:
        """Forget a row's pairs."""
        self.held[row] = -1

    def move(self, source: int, to: int) -> None:
        """Copy row `source` over row `to`."""
        self.cache.move(source, to)
        self.held[to] = self.held[source]

    def over(self, rows: slice, pair: Tensor, mask: Tensor) -> RingPass:
        """A pass over nodes that are pairs pair [B,W] of these rows; mask [B,W,N]: those of scratch
        that each sees.

        The nodes are the last W of the N in scratch. They see the first `sink` pairs, and of the
        latest those that are less than `window` before their own.
        """
        used = min(int(self.held[rows].max()) + 1, self.slots)
        return RingPass(self.cache.rows(rows), self.slots, self._near(rows, pair)[..., :used], mask)

    def seen(self, rows: slice, pair: Tensor, mask: Tensor) -> Tensor:
        """The slots that the nodes of such a pass see, as one mask over all slots and scratch:
        bool [B,W,slots+N].
        """
        return torch.cat([self._near(rows, pair), mask], -1)

    def _near(self, rows: slice, pair: Tensor) -> Tensor:
        """Which slots are seen by nodes that are pairs pair [B,W] of these rows: bool
        [B,W,slots].
        """
        held = self.held[rows, None]
        near = (held < self.sink) | (held > pair[..., None] - self.window)
        return (held >= 0) & near

    def keys(self, rows: slice, nodes: int, heads: int, dim: int, dtype: torch.dtype) -> DraftKeys:
        """The keys of these rows, with room for this many nodes in scratch."""
        cache = self.cache.rows(rows) if rows.start else self.cache
        return DraftKeys(
            cache.pointers(self.slots + nodes, [0], heads, dim, dtype), None, ring=self.slots
        )

    def keep(self, rows: slice, pair: Tensor, real: Tensor) -> None:
        """Move the first nodes of scratch, pairs pair [B,W], to their slots; only the `real` [B,W]
        ones.

        W is at most `window`, so that no two of them have the same slot.
        """
        slot = torch.where(pair < self.sink, pair, self.sink + (pair - self.sink) % self.window)
        cache = self.cache.rows(rows)
        for b, mine in enumerate(real):
            for x in cache.read(0, b):
                x[:, slot[b, mine]] = x[:, self.slots + mine.nonzero()[:, 0]]
            self.held[(rows.start or 0) + b, slot[b, mine]] = pair[b, mine]


@dataclass
class RingPass:
    """Attention of the last W nodes of scratch: to the slots that each sees, held [B,W,used], and
    to scratch, mask [B,W,N].
    """

    cache: KVCache
    slots: int
    held: Tensor
    mask: Tensor
    calls: int = 0

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
        /,
    ) -> Tensor:
        """q [B,H,W,D], k, v [B,K,W,D] of the nodes -> [B,W,H,Dv]; k and v are written to
        scratch.
        """
        used = self.held.shape[2]
        end = self.slots + self.mask.shape[2]
        self.cache.write(0, k, v, [end - k.shape[2]] * len(k))
        outputs = []
        for b, query in enumerate(q):
            keys, values = self.cache.read(0, b)
            segments = [
                Segment(keys[:, self.slots : end], values[:, self.slots : end], self.mask[b])
            ]
            if used:
                segments.insert(0, Segment(keys[:, :used], values[:, :used], self.held[b]))
            outputs.append(attend(query, segments, scale, softcap, sink).out)
        return torch.stack(outputs)
