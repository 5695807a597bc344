"""The key-value cache: one buffer per layer, written in place, never copied as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError


@dataclass
class _Store:
    """The buffers of all rows, k and v [B,K,S,D] per layer; allocated when a layer first writes, so any shape fits."""

    batch: int
    slots: int
    made: int = 0  # buffers, so far
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def room(self, layer: int, end: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's buffers, with at least `end` slots."""
        slots = self.slots if end <= self.slots else end + end // 4
        old = self.layers.get(layer)
        if old is None or old[0].shape[2] < end:
            new = [x.new_zeros(self.batch, x.shape[1], slots, x.shape[3]) for x in (k, v)]
            for a, b in zip(new, old or (), strict=False):
                a[:, :, : b.shape[2]] = b
            self.layers[layer], self.made = (new[0], new[1]), self.made + 1
        self.slots = slots  # not before there is memory for so many
        return self.layers[layer]


class KVCache:
    """Slots [0, length) of a row are committed; later slots are scratch: drafts write there, verification overwrites.

    A slot's index is its token's position in the text. length [B].
    """

    def __init__(self, batch: int, slots: int, device: torch.device | str = "cpu"):
        self.length = torch.zeros(batch, dtype=torch.long, device=device)
        self._store, self._first = _Store(batch, slots), 0

    _places: tuple[tuple[Any, ...], list[tuple[int, int, int]]] | None = None
    _table: tuple[list[tuple[int, int, int]], Tensor] | None = None

    def row(self, b: int) -> KVCache:
        """Row b alone, over the same memory; its length is shared too."""
        view = object.__new__(KVCache)
        view.length, view._store, view._first = self.length[b : b + 1], self._store, b
        return view

    def first(self, rows: int) -> KVCache:
        """Rows [0, rows) of a whole cache, over the same memory; their lengths are shared too."""
        view = object.__new__(KVCache)
        view.length, view._store, view._first = self.length[:rows], self._store, self._first
        return view

    def read(self, layer: int, b: int) -> tuple[Tensor, Tensor]:
        """k [K,S,D] and v [K,S,Dv] of one row, scratch included."""
        k, v = self._store.layers[layer]
        return k[self._first + b], v[self._first + b]

    @property
    def layers(self) -> list[int]:
        return sorted(self._store.layers)

    def nbytes(self, length: int) -> int:
        """Bytes of keys and values that a step at this context length reads, for one row."""
        return (
            sum(x.shape[1] * x.shape[3] * x.element_size() for kv in self._store.layers.values() for x in kv) * length
        )

    def write(self, layer: int, k: Tensor, v: Tensor, starts: list[int]) -> None:
        """k, v [B,K,W,D] go to slots starts[b] and on of each row."""
        W = k.shape[2]
        into_k, into_v = self._store.room(layer, max(starts) + W, k, v)
        for b, at in enumerate(starts):
            into_k[self._first + b, :, at : at + W] = k[b]
            into_v[self._first + b, :, at : at + W] = v[b]

    def pointers(self, end: int, layers: int, heads: int, dim: int, dtype: torch.dtype) -> list[tuple[int, int, int]]:
        """Of every layer: addresses of this cache's first row of k and v, with room for `end` slots, and a row's slots.

        Found anew only where a buffer has moved: the list is the same one until then.
        """
        wanted = layers, heads, dim, dtype
        if self._places is None or self._places[0] != (self._store.made, *wanted) or end > self._store.slots:
            like = torch.empty(0, heads, 0, dim, dtype=dtype, device=self.length.device)
            buffers = [self._store.room(layer, max(end, self._store.slots), like, like) for layer in range(layers)]
            at = self._first
            for x in (x for pair in buffers for x in pair):
                self._check(x, heads, dim, dtype)
            places = [(k[at].data_ptr(), v[at].data_ptr(), k.shape[2]) for k, v in buffers]
            self._places = (self._store.made, *wanted), places
        return self._places[1]

    def _check(self, x: Tensor, heads: int, dim: int, dtype: torch.dtype) -> None:
        """Raises InputError unless a buffer holds this many heads of this width for all rows, side by side."""
        if (x.shape[1], x.shape[3], x.dtype) != (heads, dim, dtype):
            raise InputError(
                f"this cache holds {x.shape[1]} key heads of {x.shape[3]} numbers in {x.dtype}, where the model has"
                f" {heads} of {dim} in {dtype}: give each model a cache of its own"
            )
        if len(x) < self._first + len(self.length) or not x.is_contiguous():
            raise ValueError(f"a buffer of the cache is {tuple(x.shape)}: too few rows, or not side by side")

    def table(self, end: int, layers: int, heads: int, dim: int, dtype: torch.dtype) -> Tensor:
        """[layers,4] `pointers` of every layer and a zero, on the device."""
        places = self.pointers(end, layers, heads, dim, dtype)
        if self._table is None or self._table[0] is not places:
            self._table = places, torch.tensor([(*place, 0) for place in places], device=self.length.device)
        return self._table[1]

    def keep(self, path: Tensor, count: Tensor) -> None:
        """Commit scratch nodes path [B,A], of which count [B] are real, as the next tokens; ascending, so path[i] >= i.

        Nothing moves where the path is already in place, as it is for every chain.
        """
        steps = torch.arange(path.shape[1], device=path.device)
        moves = ((path != steps) & (steps < count[:, None])).any(1)
        for b in moves.nonzero()[:, 0].tolist():
            at, n = int(self.length[b]), int(count[b])
            for buffers in self._store.layers.values():
                for x in buffers:
                    row = x[self._first + b]
                    row[:, at : at + n] = row[:, at + path[b, :n]]
        self.length += count

    def move(self, source: int, to: int) -> None:
        """Row `to` becomes what row `source` is."""
        self.length[to] = self.length[source]
        n = int(self.length[to])
        for buffers in self._store.layers.values():
            for x in buffers:
                x[self._first + to, :, :n] = x[self._first + source, :, :n]

    @contextmanager
    def rollback(self) -> Iterator[None]:
        """Whatever is committed inside becomes scratch again at the end."""
        saved = self.length.clone()
        try:
            yield
        finally:
            self.length.copy_(saved)

    @contextmanager
    def reopen(self, count: int) -> Iterator[None]:
        """The last `count` committed slots are scratch inside; at the end they are committed again, bit for bit."""
        ends = self.length.tolist()
        places = [(layer, b, max(n - count, 0), n) for layer in self.layers for b, n in enumerate(ends)]
        saved = [[x[:, low:n].clone() for x in self.read(layer, b)] for layer, b, low, n in places]
        with self.rollback():
            self.length.sub_(count).clamp_(min=0)
            try:
                yield
            finally:  # read again: a pass that needs room moves the buffers
                for (layer, b, low, n), bits in zip(places, saved, strict=True):
                    for x, old in zip(self.read(layer, b), bits, strict=True):
                        x[:, low:n] = old
