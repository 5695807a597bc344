"""Bytes of weights, keys, values and recurrent states that a pass moves, computed, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from longdraft.backends.describe import describe
from longdraft.backends.features.experts import PER_NODE, number_of
from longdraft.core.cache import KVCache
from longdraft.models.lm import LM
from longdraft.ops import coded

# committed slots of each row -> how many of them a pass reads
Seen = Callable[[list[int]], list[int]]


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights.

    Every pass reads `shared`, and of `experts` those that its nodes are routed to.
    """

    shared: int
    experts: int = 0
    each: float = 0.0  # fraction of the experts that one node is routed to

    def read(self, nodes: int) -> float:
        """Expected bytes that a pass over this many nodes reads.

        Nodes are assumed to choose their experts independently.
        """
        return self.shared + self.experts * (1 - (1 - self.each) ** nodes)


_WEIGHTS: WeakKeyDictionary[LM, Weights] = WeakKeyDictionary()


def weights_of(model: LM) -> Weights:
    """The weights of a model, computed once per model."""
    if model not in _WEIGHTS:
        count = model.experts
        experts = (
            [p for name, p in model.hf.named_parameters() if ".experts." in name] if count else []
        )
        size = sum(p.nbytes for p in experts)
        each = number_of(model.config, PER_NODE) or 1
        _WEIGHTS[model] = Weights(
            model.nbytes() - size, size, min(each / count, 1.0) if count else 0.0
        )
    return _WEIGHTS[model]


@dataclass(frozen=True)
class InCodes:
    """The number of each row's committed slots that a pass reads as codes of this many bits.

    See ops/coded.py.
    """

    slots: Seen
    bits: int


def keys_read(
    model: LM,
    cache: KVCache,
    seen: Seen | None = None,
    layers: Iterable[int] | None = None,
    codes: InCodes | None = None,
) -> int:
    """Bytes of keys and values that a pass reads in these layers (default: all).

    seen: under a view.
    codes: of the slots that are seen, those that are read as codes. A layer with a window or chunks
    reads these under any view, an indexer all its keys, and layers that share keys read them once
    each.
    """
    lengths = cache.length.tolist()
    total = 0
    readers_of_shared = Counter(model.sources.values())
    shown = sum(lengths if seen is None else seen(lengths))
    in_codes = 0 if codes is None or not codes.bits else sum(codes.slots(lengths))
    for layer in cache.layers if layers is None else layers:
        span = model.architecture.spans.get(layer)
        of_indexer = layer >= model.config.num_hidden_layers
        full = shown - in_codes
        if span is not None:
            full = sum(n - max(0, span.low(n - 1)) for n in lengths)
        readers = 1 + readers_of_shared[layer]
        total += readers * (sum(lengths) if of_indexer else full) * cache.slot_bytes(layer)
        if in_codes and codes is not None and span is None and not of_indexer:
            total += readers * in_codes * cache.slot_bytes(layer, codes.bits)
    return total


def slot_bytes(model: LM) -> int:
    """Bytes of one slot's keys and values in all layers of a model.

    The native backend computes the model.
    """
    bits = model.kv_bits
    attentions = describe(model.hf).attentions
    if bits:
        return sum(2 * a.key_heads * coded.width(a.dim, bits) for a in attentions)
    return sum(2 * a.key_heads * a.dim * model.dtype.itemsize for a in attentions)


def bytes_read(
    model: LM,
    cache: KVCache,
    nodes: int = 1,
    seen: Seen | None = None,
    codes: InCodes | None = None,
) -> float:
    """Bytes that a pass over `nodes` nodes per row moves.

    Weights, keys and states are read once, and states are written too.
    """
    keys = keys_read(model, cache, seen, codes=codes)
    return weights_of(model).read(nodes * len(cache.length)) + keys + states_moved(cache)


def states_moved(cache: KVCache) -> int:
    """Bytes of recurrent states that a pass reads and writes.

    They do not depend on its nodes, the context and the view.
    """
    return 2 * sum(cache.states(b).nbytes() for b in range(len(cache.length)))


def size_of(module: nn.Module) -> int:
    """Bytes of a module's parameters."""
    return sum(p.nbytes for p in module.parameters())


def head_size(model: LM) -> int:
    """Bytes of a model's output matrix."""
    head = model.hf.get_output_embeddings()
    return 0 if head is None else size_of(head)
