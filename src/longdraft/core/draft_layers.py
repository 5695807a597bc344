"""A drafter's own layers, as data for backends, and the protocol of the compiled layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from longdraft.core.cache import KVCache
from longdraft.core.sampling import ChainDraws
from longdraft.core.tree import Tree
from longdraft.core.view import IndexView


@dataclass(frozen=True)
class DraftLayer:
    """A Llama-like layer: attention, then an MLP, unless it has none.

    input_norm None: attention reads the stream's initial value. A layer of keys only has k and v. A
    layer without k and v attends to keys of the target (DraftLayers.host).
    """

    k: nn.Linear | None = None
    v: nn.Linear | None = None
    q: nn.Linear | None = None
    o: nn.Linear | None = None
    gate: nn.Linear | None = None
    up: nn.Linear | None = None
    down: nn.Linear | None = None
    mlp_norm: nn.Module | None = None
    input_norm: nn.Module | None = None
    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None


@dataclass(frozen=True)
class DraftLayers:
    """Layers with their own keys, from the start of the residual stream to the target's logits.

    starts: "embedding": with the token's embedding, so that no features pass from node to node.
    "given": with what the caller passes. "fused": with fuse [token; feature], each after its norm.
    "beside": with the feature, and attention reads [token; feature], each after its norm. fuse:
    makes features, and what is given, of sources too. feature_first: [feature; token].
    normed_residual: the stream begins with the feature after its norm. norm: before the head;
    target_norm: it is the target's. normed_feature: what it gives is the next feature, not what it
    reads. head None: the target's. tokens [count]: of the head's outputs; None: all of the
    target's. frequency, scaling: of the rotation; frequency None: it is the target's. ring: keys
    lie in a ring of slots. keys_only: every layer only has keys and values of the stream, after its
    input_norm. host: the target's layer whose committed keys are read by layers without keys.
    """

    layers: Sequence[DraftLayer]
    heads: int
    key_heads: int
    dim: int
    mlp: int
    eps: float
    starts: Literal["embedding", "given", "fused", "beside"]
    frequency: Tensor | None = None
    scaling: float = 1.0
    fuse: nn.Linear | None = None
    token_norm: nn.Module | None = None
    feature_norm: nn.Module | None = None
    feature_first: bool = False
    normed_residual: bool = False
    norm: nn.Module | None = None
    target_norm: bool = False
    normed_feature: bool = False
    head: Any = None
    tokens: Tensor | None = None
    ring: bool = False
    keys_only: bool = False
    host: int | None = None


@dataclass(frozen=True)
class DraftKeys:
    """Addresses of the keys of draft layers, with room for the nodes of a pass after them.

    places: for each layer with keys the addresses of the first row's keys and values [B,K,slots,D],
    and the slots of a row. length [B]: slots of each row that hold keys, in the target's cache if
    it is given; None with a ring alone. tail [B], sink: of these slots, the nodes see only those
    from `tail` on and the first `sink`; None: all. ring: slots of the ring. target, view: the
    target's cache for layers without keys, and what they see of it (None: all).
    """

    places: Sequence[tuple[int, int, int]]
    length: Tensor | None = None
    tail: Tensor | None = None
    sink: int = 0
    ring: int = 0
    target: KVCache | None = None
    view: IndexView | None = None


class CompiledLayers(Protocol):
    """Computes the passes of draft layers.

    Its numbers may differ from those of the modules by rounding.
    """

    def forward(
        self,
        tree: Tree,
        start: int,
        position: Tensor,
        mask: Tensor,
        keys: DraftKeys,
        features: Tensor | None,
        sources: bool = False,
        logits: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute nodes [start, size) at position [B,W] after features [B,W,d].

        Returns the next features [B,W,d] and the logits. Without features, d is 0, and logits are
        of all tokens of the target.
        mask: bool [B,W,size], the nodes that each sees; with a ring [B,W,ring+size]. sources: the
        features are what `fuse` makes features of. logits: of this many last nodes
        [B,logits,known], 0 for all; None: none.
        """
        ...

    def draft_chain(
        self,
        roots: Tensor,
        output: Tensor | None,
        position: Tensor,
        keys: DraftKeys,
        draws: ChainDraws,
        seen: Tensor | None,
    ) -> Tensor:
        """Draw a chain below the roots [B] -> its tokens [B,count].

        output [B,1,d]: of the layers, for the roots. None: the roots are run first, N=count nodes
        in all; else the N=count-1 drafted tokens that others follow are run.
        position [B]: of the first node that is run. seen: bool [B,N,ring+N], with a ring.
        """
        ...

    def grow(
        self,
        roots: Tensor,
        output: Tensor,
        position: Tensor,
        keys: DraftKeys,
        draws: ChainDraws,
        topk: int,
        depth: int,
        nodes: int,
        narrow: bool,
    ) -> Tree:
        """EAGLE-2's dynamic tree of at most `nodes` nodes (sec. 4), given the layers' output
        [B,1,d] for the roots.

        narrow: the tree has the nodes that were run and the best of the last level, not the best of
        all candidates.
        """
        ...
