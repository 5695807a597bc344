"""The protocol of backends: how a forward pass is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

from torch import Tensor

from longdraft.backends.features.feature import Feature
from longdraft.core import Captures, ChainDraws, KVCache, KVView, Tree, is_indexable
from longdraft.core.draft_layers import CompiledLayers, DraftLayers

# (first [B], start, draws) -> tokens [B,count]
ChainDrafter = Callable[[Tensor, int, ChainDraws], Tensor]


class Backend(Protocol):
    """Computes the passes of one model. The defaults are those of the least capable backend.

    exact: a node's logits, keys and values are the same bits whatever nodes and rows are computed
    beside it.
    max_nodes: how many nodes one call of `forward` takes at most. kernels: the name of its compiled
    kernels, if any. reads_codes: the cache may hold codes of 8 bits; the model's modules can always
    read them. prefers_codes: keys and values in 8 bits were measured to be as fast as
    unchanged ones in short contexts, and faster in long ones. SUPPORTED: the features that it
    computes; it runs no model that has others.
    """

    SUPPORTED: ClassVar[frozenset[type[Feature]]] = frozenset()
    name: str
    exact: bool = False
    max_nodes: int = 128
    kernels: str | None = None
    reads_codes: bool = True
    prefers_codes: bool = False

    @classmethod
    def computes(cls, features: Iterable[Feature]) -> bool:
        """Whether all of them are in SUPPORTED: it computes nothing that it does not list."""
        return {type(feature) for feature in features} <= cls.SUPPORTED

    def supports(self, view: KVView | None, logits: int = 0) -> bool:
        """Whether `forward` can compute a pass under this view with logits of the last `logits`
        nodes (0: all).
        """
        return not logits and is_indexable(view)

    def forward(
        self,
        tree: Tree,
        cache: KVCache,
        start: int,
        view: KVView | None,
        captured: Captures,
        logits: int = 0,
    ) -> Tensor:
        """Run nodes [start, size) of a tree whose earlier nodes sit in scratch -> logits [B,W,V].

        Their keys and values are written to slots length+start and on; what captured.spec requests
        is stored in it.
        """
        ...

    def chain_drafter(self, cache: KVCache, view: KVView | None) -> ChainDrafter | None:
        """A function that drafts a chain in one call; None where each node needs a call of
        `forward`.

        It runs `first` as node `start` and every drawn token but the last.
        """
        return None

    def compile_layers(self, layers: DraftLayers) -> CompiledLayers | None:
        """A drafter's own layers; None: this backend does not compute them."""
        return None
