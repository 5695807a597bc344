"""The key-value cache: a pair of buffers per layer, written in place."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import torch
from torch import Tensor

from longdraft.core.rewinding import Rewinding
from longdraft.core.states import Recurrence, RowStates
from longdraft.errors import InputError
from longdraft.ops import Coding, StoredRow, coded


@dataclass
class _Store:
    """The buffers of each layer, allocated at its first write.

    k and v [B,K,S,D], or uint8 [B,K,S,width] for codes.
    numbers: for each layer the key heads, the D of its keys and of its values, and their dtype
    before they are encoded.
    """

    batch: int
    slots: int
    bits: int
    key_offsets: Mapping[int, Tensor]  # by layer, [K,D]
    allocations: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    numbers: dict[int, tuple[int, int, int, torch.dtype]] = field(default_factory=dict)
    # by scan of a pass, if the model has any
    recurrences: dict[int, Recurrence] = field(default_factory=dict)
    states: list[RowStates] = field(default_factory=list)  # of each row

    def __post_init__(self) -> None:
        self.states = [RowStates() for _ in range(self.batch)]

    def reserve(self, layer: int, end: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's buffers, with at least `end` slots.

        k and v give the shape and dtype of new buffers.
        """
        slots = self.slots if end <= self.slots else end + end // 4
        old = self.layers.get(layer)
        if old is None or old[0].shape[2] < end:
            new = [self._buffer(x, slots) for x in (k, v)]
            for a, b in zip(new, old or (), strict=False):
                a[:, :, : b.shape[2]] = b
            self.layers[layer] = (new[0], new[1])
            self.allocations += 1
            self.numbers[layer] = k.shape[1], k.shape[3], v.shape[3], k.dtype
        self.slots = slots  # only once the allocation has succeeded
        return self.layers[layer]

    def _buffer(self, x: Tensor, slots: int) -> Tensor:
        size = x.shape[3]
        dtype = x.dtype
        if self.bits:
            size = coded.width(size, self.bits)
            dtype = torch.uint8
        return zeros((self.batch, x.shape[1], slots, size), dtype, x.device)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros, which on a CPU takes memory only where it is written.

    A cache may have room for far more slots than are used.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        memory = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=dtype).view(shape)
    except OSError as error:  # what torch would raise
        raise MemoryError(f"there is no memory for {size} bytes of keys and values") from error


class KVCache(Rewinding):
    """The keys and values of a batch: slots [0, length) of a row are committed, later ones scratch.

    Drafts write to scratch slots, and verification overwrites them. A committed slot's index is its
    token's position in the sequence. length [B]. planned [B]: how many slots the row's text may
    fill, by which some models choose its rotations; it stays while the row holds keys. bits: 8 if
    keys and values are stored as codes (ops/coded.py); 0: unchanged. key_offsets [K,D] float32 by
    layer: what the codes of 8 bits leave out of the keys of some layers. Scratch is encoded too, so
    a node reads the same numbers of its ancestors whether they are committed or not. Recurrent
    layers have states instead (states.py), which cannot be shortened by a number alone: `truncate`
    does that.
    """

    _known_addresses: tuple[tuple[Any, ...], list[tuple[int, int, int]]] | None = None
    _known_table: tuple[list[tuple[int, int, int]], Tensor] | None = None

    def __init__(
        self,
        batch: int,
        slots: int,
        device: torch.device | str = "cpu",
        bits: int = 0,
        key_offsets: Mapping[int, Tensor] | None = None,
    ):
        self._store = _Store(batch, slots, bits, key_offsets or {})
        length = torch.zeros(batch, dtype=torch.long, device=device)
        super().__init__(length, 0, self._store.states, self._store.recurrences)
        self.planned = torch.full_like(self.length, slots)

    @property
    def bits(self) -> int:
        return self._store.bits

    @property
    def key_offsets(self) -> Mapping[int, Tensor]:
        return self._store.key_offsets

    def row(self, b: int) -> KVCache:
        """Row b alone, over the same memory and length."""
        return self.rows(slice(b, b + 1))

    def first(self, count: int) -> KVCache:
        """Rows [0, count), over the same memory and lengths."""
        return self.rows(slice(count))

    def rows(self, span: slice) -> KVCache:
        """The rows of a span, over the same memory and lengths."""
        view = object.__new__(KVCache)
        view.planned = self.planned[span]
        view._store = self._store
        Rewinding.__init__(
            view,
            self.length[span],
            self._first + (span.start or 0),
            self._store.states,
            self._store.recurrences,
        )
        return view

    def read(self, layer: int, b: int) -> tuple[Tensor, Tensor]:
        """k [K,S,D] and v [K,S,Dv] of one row, scratch included; codes are decoded at each call."""
        return self.stored_row(layer, b).numbers()

    def stored_row(self, layer: int, b: int) -> StoredRow:
        """One row's keys and values, scratch included, of which a part can be read alone."""
        k, v = self.stored(layer, b)
        if not self.bits:
            return StoredRow(k, v)
        _, key, value, dtype = self._store.numbers[layer]
        return StoredRow(k, v, Coding(self.bits, key, value, dtype, self._key_offset(layer)))

    def _key_offset(self, layer: int) -> Tensor | None:
        """[K,1,D], for all slots."""
        offset = self.key_offsets.get(layer)
        return None if offset is None else offset[:, None]

    def stored(self, layer: int, b: int) -> tuple[Tensor, Tensor]:
        """One row's stored keys and values, undecoded.

        The tensors that `read` returns, or codes uint8 [K,S,width].
        """
        k, v = self._store.layers[layer]
        return k[self._first + b], v[self._first + b]

    @property
    def layers(self) -> list[int]:
        return sorted(self._store.layers)

    @property
    def shapes(self) -> dict[int, tuple[int, int, int, torch.dtype]]:
        """Each layer's key heads, the sizes of a key and of a value, and their dtype.

        The dtype is that before any coding.
        """
        return dict(self._store.numbers)

    def allocate(self, shapes: dict[int, tuple[int, int, int, torch.dtype]], end: int = 0) -> None:
        """Allocate the layers that were not written yet, with at least `end` slots.

        Then `stored` has them. shapes: the `shapes` of such a cache.
        """
        for layer, (heads, key, value, dtype) in shapes.items():
            k, v = (
                torch.empty(1, heads, 0, n, dtype=dtype, device=self.length.device)
                for n in (key, value)
            )
            self._store.reserve(layer, end, k, v)

    def nbytes(self, length: int) -> int:
        """Bytes of keys and values that one row's step reads at this context length."""
        return sum(self.slot_bytes(layer) for layer in self.layers) * length

    def slot_bytes(self, layer: int, bits: int = 0) -> int:
        """Bytes of one slot's key and value in this layer.

        As they are stored, or as codes of this many bits.
        """
        heads, key, value, dtype = self._store.numbers[layer]
        bits = bits or self.bits
        if bits:
            return heads * (coded.width(key, bits) + coded.width(value, bits))
        return heads * (key + value) * dtype.itemsize

    def write(self, layer: int, k: Tensor, v: Tensor, starts: list[int]) -> None:
        """Write k, v [B,K,W,D] to the W slots of each row that begin at starts[b]."""
        W = k.shape[2]
        into_k, into_v = self._store.reserve(layer, max(starts) + W, k, v)
        if self.bits:
            k = coded.encode_keys(k, self.bits, self._key_offset(layer))
            v = coded.encode_values(v, self.bits)
        for b, start in enumerate(starts):
            into_k[self._first + b, :, start : start + W] = k[b]
            into_v[self._first + b, :, start : start + W] = v[b]

    def pointers(
        self,
        end: int,
        layers: Sequence[int],
        heads: int,
        dim: int,
        dtype: torch.dtype,
        value: int | None = None,
    ) -> list[tuple[int, int, int]]:
        """The addresses of row 0 in k and in v, and a row's slots, for each of these layers.

        dim: numbers of a key, and of a value unless `value` says how many that has.

        Every buffer then has at least `end` slots. The same list object is returned until a buffer
        moves. Raises InputError for keys of another shape or dtype.
        """
        value = dim if value is None else value
        shape = tuple(layers), heads, dim, dtype
        known = self._known_addresses
        if (
            known is None
            or known[0] != (self._store.allocations, *shape)
            or end > self._store.slots
        ):
            like_k, like_v = (
                torch.empty(0, heads, 0, n, dtype=dtype, device=self.length.device)
                for n in (dim, value)
            )
            buffers = [
                self._store.reserve(layer, max(end, self._store.slots), like_k, like_v)
                for layer in layers
            ]
            for held in self._store.numbers.values():
                if held != (heads, dim, value, dtype):
                    raise InputError(
                        f"this cache holds {held[0]} key heads of size {held[1]} in {held[3]}, "
                        f"but the model has {heads} of size {dim} in {dtype}: "
                        "give each model its own cache"
                    )
            for buffer in chain.from_iterable(buffers):
                if len(buffer) < self._first + len(self.length) or not buffer.is_contiguous():
                    raise ValueError(
                        f"a cache buffer of shape {tuple(buffer.shape)} has too few rows or is "
                        "not contiguous"
                    )
            row = self._first
            addresses = [(k[row].data_ptr(), v[row].data_ptr(), k.shape[2]) for k, v in buffers]
            known = (self._store.allocations, *shape), addresses
            self._known_addresses = known
        return known[1]

    def table(self, end: int, layers: int, heads: int, dim: int, dtype: torch.dtype) -> Tensor:
        """[layers,4] on the device: `pointers` of each layer, then a zero."""
        addresses = self.pointers(end, range(layers), heads, dim, dtype)
        if self._known_table is None or self._known_table[0] is not addresses:
            self._known_table = (
                addresses,
                torch.tensor([(*a, 0) for a in addresses], device=self.length.device),
            )
        return self._known_table[1]

    def keep(self, path: Tensor, count: Tensor) -> None:
        """Commit the first count [B] of the scratch nodes path [B,A] as the next tokens.

        path is ascending, which means path[i] >= i, so rows can be compacted in place. The path of
        a chain is in place already, and nothing is copied.
        """
        steps = torch.arange(path.shape[1], device=path.device)
        moves = ((path != steps) & (steps < count[:, None])).any(1)
        for b in moves.nonzero()[:, 0].tolist():
            start = int(self.length[b])
            n = int(count[b])
            for buffers in self._store.layers.values():
                for x in buffers:
                    row = x[self._first + b]
                    row[:, start : start + n] = row[:, start + path[b, :n]]
            self.states(b).compact(start, path[b, :n])
        self.length += count

    def wipe(self, begin: int, end: int) -> None:
        """Write zeros to slots [begin, end) of the rows, which erases an earlier text."""
        rows = slice(self._first, self._first + len(self.length))
        for buffers in self._store.layers.values():
            for x in buffers:
                x[rows, :, begin:end] = 0

    def copy(self) -> KVCache:
        """The same committed slots and states, in memory of their own."""
        store = self._store
        device = self.length.device
        other = KVCache(len(self.length), store.slots, device, store.bits, store.key_offsets)
        other.restore(self.mark())
        other.planned.copy_(self.planned)
        other.recurrences.update(self.recurrences)
        other.allocate(self.shapes)
        for layer in self.layers:
            for b, n in enumerate(self.length.tolist()):
                for mine, its in zip(self.stored(layer, b), other.stored(layer, b), strict=True):
                    its[:, :n] = mine[:, :n]
        return other

    def move(self, source: int, to: int) -> None:
        """Copy row `source` over row `to`."""
        self.length[to] = self.length[source]
        self.planned[to] = self.planned[source]
        n = int(self.length[to])
        for buffers in self._store.layers.values():
            for x in buffers:
                x[self._first + to, :, :n] = x[self._first + source, :, :n]
        self._states[self._first + to] = self.states(source).copy()

    @contextmanager
    def rollback(self) -> Generator[None]:
        """Commits inside the block are undone after it: the slots become scratch again."""
        saved = self.length.clone()
        with self.holding():
            try:
                yield
            finally:
                self.length.copy_(saved)

    @contextmanager
    def reopen(self, count: int) -> Generator[None]:
        """Makes the last `count` committed slots scratch inside the block.

        After it they are restored bit for bit.
        """
        ends = self.length.tolist()
        spans = [
            (layer, b, max(n - count, 0), n) for layer in self.layers for b, n in enumerate(ends)
        ]
        saved = [[x[:, low:n].clone() for x in self.stored(layer, b)] for layer, b, low, n in spans]
        with self.rollback(), self.earlier([max(n - count, 0) for n in ends]):
            self.length.sub_(count).clamp_(min=0)
            try:
                yield
            finally:  # read again: the buffers move when a pass needs more slots
                for (layer, b, low, n), bits in zip(spans, saved, strict=True):
                    for x, old in zip(self.stored(layer, b), bits, strict=True):
                        x[:, low:n] = old

    @contextmanager
    def reopen_from(self, first: int) -> Generator[int]:
        """Like `reopen`, for a single row, from slot `first` on -> the first slot that is reopened.

        Where the row's states cannot be taken back that far, it is the nearest later slot whose
        states are kept, or the row's length if there is none before.
        """
        first = self.earliest(first)
        with self.reopen(int(self.length[0]) - first):
            yield first
