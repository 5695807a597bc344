"""What a round costs: by the clock where its shape cannot show in the text, elsewhere by counts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from torch import nn

from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.models.lm import LM

if TYPE_CHECKING:
    from longdraft.drafters.base import Drafter

# The fixed costs, as shares of a plain step. On a CPU they are rounded from the records of task `steps` (native step);
# a GPU's NODE is arithmetic: it computes some 200 times as fast as it reads.
NODE = {"cuda": 0.005, "cpu": 0.04}  # each node of a verification beyond a row's first
SCORES = 0.3  # keeping the scores of a verification, and choosing and copying keys by them
LEVEL = 0.05  # a level drafted by a model, however little it reads

Seen = Callable[[list[int]], list[int]]  # committed slots of each row -> how many of them a pass reads


class Costs(Protocol):
    """The cost of each round of a text, in a unit of its own: only ratios are ever used."""

    def begin(self) -> None:
        """A round begins."""

    def end(self, inner: Drafter, seqs: Sequences, tree: Tree, depth: int, captured: Captures) -> float:
        """What the round has cost: inner drafted a tree of this depth, and its verification left taps behind."""
        ...


class Measured:
    """Seconds by the clock. Where a tree's shape can show in the text, use Counted: clocks never run the same twice."""

    def __init__(self, clock: Callable[[], float] | None = None):
        self.clock, self.began = clock or perf_counter, 0.0

    def begin(self) -> None:
        self.began = self.clock()

    def end(self, inner: Drafter, seqs: Sequences, tree: Tree, depth: int, captured: Captures) -> float:
        return max(self.clock() - self.began, 1e-9)  # a coarse clock may stand still, and rates divide by this


class Counted:
    """Shares of a plain step, a function of counts alone: the same call has the same costs every time.

    A plain step costs the bytes it reads, and so does a draft (Drafter.reads); a verification costs the bytes that its
    nodes read together, and a little for each node. It says nothing of this machine, so it can be far from its times.
    """

    def __init__(self, target: LM):
        self.target, self.node = target, NODE.get(target.device.type, NODE["cpu"])

    def begin(self) -> None: ...

    def end(self, inner: Drafter, seqs: Sequences, tree: Tree, depth: int, captured: Captures) -> float:
        plain = bytes_read(self.target, seqs.cache)
        cost = bytes_read(self.target, seqs.cache, tree.size) / plain
        cost += self.node * len(seqs.length) * (tree.size - 1)
        if captured.spec.rows is not None:
            cost += SCORES
        if depth and (drafted := inner.reads(seqs, depth)):
            cost += drafted / plain + LEVEL * depth
        return cost


def fitting(target: LM, tree: Tree) -> Costs:
    """Measured, where the text is the same whatever trees are drafted; Counted elsewhere.

    It is not the same where a node's numbers depend on the nodes beside it, nor under verify=reject, which keeps a law
    with the tree: what it emits depends on what was drafted.
    """
    return Measured() if target.exact and tree.draft_probs is None else Counted(target)


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights: `shared` are read by every pass, of `experts` those that some node is sent to."""

    shared: int
    experts: int = 0
    each: float = 0.0  # share of the experts that one node is sent to

    def read(self, nodes: int) -> float:
        """Bytes that a pass over so many nodes reads, if each chose its experts by itself."""
        return self.shared + self.experts * (1 - (1 - self.each) ** nodes)


_WEIGHTS: WeakKeyDictionary[LM, Weights] = WeakKeyDictionary()


def weights_of(model: LM) -> Weights:
    """Looked up once for each model."""
    if model not in _WEIGHTS:
        count = model.experts
        experts = [p for name, p in model.hf.named_parameters() if ".experts." in name] if count else []
        size = sum(p.numel() * p.element_size() for p in experts)
        each = getattr(model.config, "num_experts_per_tok", None) or 1
        _WEIGHTS[model] = Weights(model.nbytes() - size, size, min(each / count, 1.0) if count else 0.0)
    return _WEIGHTS[model]


def keys_read(model: LM, cache: KVCache, seen: Seen | None = None, layers: Iterable[int] | None = None) -> int:
    """Bytes of keys and values that a pass reads in these layers (None: in all); seen: under a view.

    A layer with a window reads that much, under any view.
    """
    lengths, total = cache.length.tolist(), 0
    shown = lengths if seen is None else seen(lengths)
    for layer in cache.layers if layers is None else layers:
        window = model.windows.get(layer)
        slots = sum(shown) if window is None else sum(min(n, window) for n in lengths)
        total += slots * sum(x.shape[0] * x.shape[2] * x.element_size() for x in cache.read(layer, 0))
    return total


def bytes_read(model: LM, cache: KVCache, nodes: int = 1, seen: Seen | None = None) -> float:
    """Bytes that a pass over so many nodes a row reads: weights once, and each row's keys once."""
    return weights_of(model).read(nodes * len(cache.length)) + keys_read(model, cache, seen)


def size_of(module: nn.Module) -> int:
    """Bytes of its parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def head_size(model: LM) -> int:
    """Bytes of its output matrix."""
    head = model.hf.get_output_embeddings()
    return 0 if head is None else size_of(head)
