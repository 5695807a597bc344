"""LongSpec's block as backends see it: what they read of one (drafters/glide/block.py), and what
they make of it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from longdraft.core import ChainDraws, IndexView, KVCache, KVView, Tree


class BlockHost(Protocol):
    """What the block shares with its target. keys: of heads. dim, value_dim: of a key and a value
    of `layer`.
    """

    layer: int
    window: int | None
    rotated: bool
    keys: int
    dim: int
    value_dim: int

    @property
    def target(self) -> Any: ...


class BlockVocabulary(Protocol):
    """The tokens [count] that the block can draft, if these are some of the target's."""

    tokens: Tensor

    def linear(self, target: Any) -> Any:
        """The target's output layer for these tokens only."""
        ...


class Block(Protocol):
    """One layer: self-attention over a ring, cross-attention to the host's keys, and an MLP."""

    heads: int
    with_norm: bool
    self_norm: nn.RMSNorm
    cross_norm: nn.RMSNorm
    mlp_norm: nn.RMSNorm
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    cross_q_proj: nn.Linear
    cross_o_proj: nn.Linear
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    @property
    def host(self) -> BlockHost: ...

    @property
    def vocabulary(self) -> BlockVocabulary | None: ...

    @property
    def dtype(self) -> torch.dtype: ...


class BlockRing(Protocol):
    """The block's own keys and values [B,K,window or more,D]: a ring of `window` slots, then the
    nodes of a tree.
    """

    k: Tensor
    v: Tensor
    window: int
    drafted: Tensor | None

    def room(self, nodes: int) -> None:
        """Make room after the ring for this many nodes of a tree."""
        ...

    def visible(self, tree: Tree, start: int) -> Tensor:
        """[B,W,window+size]: which slots nodes [start, size) attend to."""
        ...


class CompiledBlock(Protocol):
    """Computes the passes of a block over its target's cache."""

    def supports(self, view: KVView | None) -> TypeGuard[IndexView | None]:
        """Whether the block can be computed under this view of the target's cache."""
        ...

    def forward(
        self,
        tree: Tree,
        start: int,
        position: Tensor,
        ring: BlockRing,
        cache: KVCache,
        view: IndexView | None,
    ) -> Tensor:
        """Nodes [start, size) at position [B,W] -> logits [B,W,V]; their keys and values stay
        behind the ring.
        """
        ...

    def draft_chain(
        self, tree: Tree, ring: BlockRing, cache: KVCache, view: IndexView | None, draws: ChainDraws
    ) -> Tensor:
        """A chain below the root [B,count]; the keys of all but its last token stay behind the
        ring.
        """
        ...
