"""Layers that compress the keys of whole windows of positions (DeepSeek V4, sec. 2.3), over one
path at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from longdraft import ops
from longdraft.backends.current_pass import CurrentPass, current
from longdraft.backends.features.feature import Attend, Call, Feature
from longdraft.backends.features.indexer import TOPK, Intercepting, first_of_best
from longdraft.backends.features.span import Window
from longdraft.core import KVCache
from longdraft.errors import InputError

LAYERS = {"compressed_sparse_attention", "heavily_compressed_attention"}  # layer types
# of a layer: what is compressed, and in the next buffer the entries
BUFFERS = {
    "compressor": 1,
    "indexer": 3,
}


class Compressed(Feature):
    """rates {layer: how many positions it compresses to one entry}. window: the number of keys that
    its layers read besides. count: of the model's layers.
    """

    models = "DeepSeek V4"
    computed = "path by path and one row at a time; what windows are compressed from is cached"
    layer_types = frozenset(LAYERS)
    by_path = True

    def __init__(self, rates: dict[int, int], window: int, count: int):
        self.rates = rates
        self.window = window
        self.count = count
        self.spans = dict.fromkeys(rates, Window(window))

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        c = hf.config.get_text_config()
        types = getattr(c, "layer_types", None) or []
        rates = {n: int(c.compress_rates[kind]) for n, kind in enumerate(types) if kind in LAYERS}
        return cls(rates, c.sliding_window, c.num_hidden_layers) if rates else None

    @classmethod
    def keeps_state(cls, model: type, config: Any) -> bool:
        """Also of models of this kind whose layers all see windows alone."""
        return bool(getattr(config.get_text_config(), "compress_rates", None))

    def path(
        self, cache: KVCache, ancestors: list[int], nodes: list[int], dtype: torch.dtype
    ) -> Path:
        return Path(cache, ancestors, nodes, self.window, self.count, self.rates, dtype)

    @contextmanager
    def around(self, p: CurrentPass) -> Generator[None]:
        """p.attention is a Path."""
        path: Any = p.attention
        p.arguments |= path.arguments()
        p.kept[self] = path
        with Intercepting(path.replaced):
            yield

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        path: Path | None = current().kept.get(self)
        unknown = call.arguments.keys() - {"indices", "block_indices"}
        if path is None or call.mask is None or unknown:
            return proceed(call)
        path.calls += 1
        return path.attend_masked(
            call.query, call.key, call.value, call.mask, call.scale, call.softcap, call.sink
        )


@dataclass
class Path:
    """A pass over nodes that follow each other, as attention pass and as Transformers' cache. One
    row.

    What a window's compression reads of each token (its projection and gate) is cached by slots
    like keys, and an entry in the slot of the token that completes its window. So both are
    committed and rolled back with the tokens, and a window that is completed by a draft is
    compressed again where another draft is accepted. Everything is read back from the cache, so
    that rounding in the cache does not depend on which tokens are in one pass.
    """

    cache: KVCache  # of one row
    ancestors: list[int]  # scratch nodes before the new ones
    nodes: list[int]
    window: int
    count: int  # of decoder layers
    rates: dict[int, int]
    dtype: torch.dtype
    calls: int = 0
    _scored: bool = (
        False  # whether an indexer's entries were read, so that the next top-k is its own
    )
    # entries that are computed once more
    _redundant: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        begin = int(self.cache.length[0])
        device = self.cache.length.device
        scratch = [begin + i for i in (*self.ancestors, *self.nodes)]
        self.slots = torch.cat(
            [torch.arange(begin, device=device), torch.tensor(scratch, device=device)]
        )
        self.size = len(self.slots)
        self.end = max(scratch) + 1
        self.past = self.size - len(self.nodes)
        # the first position that is in a new node's window
        self.low = max(0, self.past - self.window + 1)
        new, old = (torch.arange(n, self.size, device=device) for n in (self.past, self.low))
        near = (old <= new[:, None]) & (new[:, None] - old < self.window)
        self.mask = torch.zeros(1, 1, *near.shape, dtype=self.dtype, device=device)
        self.mask.masked_fill_(~near, float("-inf"))

    def arguments(self) -> dict[str, Any]:
        """Arguments of the model's forward besides the nodes."""
        return {"attention_mask": {"sliding_attention": self.mask}, "past_key_values": self}

    @property
    def layers(self) -> _Layers:
        return _Layers(self)

    def replaced(self, func: Any) -> Callable[..., Any] | None:
        """Functions that run in place of the torch functions that an indexer calls: its top-k
        has an order of equal scores.
        """
        if not self._scored or func not in TOPK:
            return None
        self._scored = False
        return first_of_best

    def update(
        self, k: Tensor, v: Tensor, layer: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys [1,1,W,D], which are the values too -> those of the windows of all new nodes."""
        self._put(layer, k[0], self.past)
        keys = self._get(layer, self.low, self.size)[None]
        return keys, keys

    def attend(self, *_: Any) -> Tensor:
        """Raises InputError: layers of such a model always have a mask."""
        raise InputError("a layer attends without a mask, so longdraft cannot run this model")

    def attend_masked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        scale: float,
        softcap: float | None,
        sink: Tensor | None,
    ) -> Tensor:
        """q [1,H,W,D], k, v [1,1,S,D], mask [1,1,W,S] to be added -> [1,W,H,D]."""
        return ops.attend(
            q[0], [ops.Segment(k[0], v[0], mask[0, 0] == 0)], scale, softcap, sink
        ).out[None]

    def compress(
        self, layer: int, name: str, kv: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        """Cache kv, gate [1,W,D] -> those of the windows that the new nodes complete, and their
        first position.

        The window before them comes first, because a window may read it too: its entry is computed
        once more.
        """
        rate = self.rates[layer]
        buffer = self._buffer(layer, name)
        self._put(buffer, torch.cat([kv, gate], -1), self.past)
        border, end = (n // rate * rate for n in (self.past, self.size))
        first = max(0, border - rate) if end > border else end
        self._redundant[layer, name] = (border - first) // rate if end > border else 0
        new_kv, new_gate = self._get(buffer, first, end).split([kv.shape[2], gate.shape[2]], -1)
        return new_kv, new_gate, first

    def entries(self, layer: int, name: str, computed: Tensor) -> Tensor:
        """Cache the entries [1,N,D] of `compress`'s windows -> those of all complete windows."""
        rate = self.rates[layer]
        buffer = self._buffer(layer, name) + self.count
        redundant = self._redundant.pop((layer, name))
        self._put(buffer, computed[:, redundant:], self.past // rate * rate + rate - 1, rate)
        self._scored = name == "indexer"
        return self._get(buffer, rate - 1, self.size, rate)

    def _buffer(self, layer: int, name: str) -> int:
        return BUFFERS[name] * self.count + layer

    def _put(self, buffer: int, x: Tensor, first: int, step: int = 1) -> None:
        """Write x [1,N,D] to the slots of positions first, first + step, ..."""
        self.cache.allocate({buffer: (1, x.shape[2], 0, x.dtype)}, self.end)
        slots = self.slots[first::step][: x.shape[1]].tolist()
        low = 0
        for high in range(1, len(slots) + 1):
            if high == len(slots) or slots[high] != slots[high - 1] + 1:
                run = x[None, :, low:high]
                self.cache.write(buffer, run, run[..., :0], [slots[low]])
                low = high

    def _get(self, buffer: int, first: int, end: int, step: int = 1) -> Tensor:
        """[1,N,D] of the positions first, first + step, ... below end."""
        k = self.cache.read(buffer, 0)[0]
        slots = self.slots[first:end:step]
        return k[:, slots]


@dataclass(frozen=True)
class _Layers:
    """`past_key_values.layers[n]`, with the methods that compressors call."""

    path: Path
    layer: int = -1

    def __getitem__(self, layer: int) -> _Layers:
        return replace(self, layer=layer)

    def store_compression_weights(
        self, name: str, kv: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        return self.path.compress(self.layer, name, kv, gate)

    def update_overlap_state(
        self, name: str, kv: Tensor, gate: Tensor, head_dim: int
    ) -> tuple[None, None]:
        """The window before is never missing where its entry counts."""
        return None, None

    def update_compressor_states(self, name: str, compressed: Tensor) -> Tensor:
        return self.path.entries(self.layer, name, compressed)
