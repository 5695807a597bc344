"""Requests to a forward pass to keep scores or states for drafters, and the tensors it kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longdraft.core.tree import PAD, Tree


@dataclass(frozen=True)
class CaptureSpec:
    """A request to a forward pass: attention scores of some query nodes, and hidden states.

    rows: the query nodes whose scores over slots 0..root are kept, in layers with full attention:
    "first" (the root), "last" (node), "ends" (both), "all", or "mean" (one row, the mean of all);
    None: no scores.
    of: "logits" or "weights". split: one score per key head (means over its query heads) instead of
    means over all heads. only: a single layer. hidden: numbers of layers after which the residual
    stream is kept (0: the embeddings; always before the final norm). The native backend computes
    "mean" of weights over all heads from weights that it stores as bfloat16, that is, with a
    relative error of up to 1/256.
    """

    rows: str | None = None
    of: str = "logits"
    split: bool = False
    only: int | None = None
    hidden: tuple[int, ...] = ()

    def kept(self, tree: Tree) -> Tensor:
        """[B,R] the query nodes of a pass over the whole tree."""
        first = torch.zeros_like(tree.tokens[:, 0])
        last = tree.last
        if self.rows in ("all", "mean"):
            every = torch.arange(tree.size, device=first.device).repeat(len(first), 1)
            return every if self.rows == "all" else every.where(tree.parent != PAD, last[:, None])
        return torch.stack(
            {"first": [first], "last": [last], "ends": [first, last]}[self.rows or "ends"], 1
        )


@dataclass(frozen=True)
class PromptSpec:
    """A request to a prefill: states of the last `count` tokens after the layers `hidden`.

    Layers are numbered as in CaptureSpec.hidden.
    """

    hidden: tuple[int, ...] = ()
    count: int = 0

    @staticmethod
    def union(specs: Iterable[PromptSpec]) -> PromptSpec:
        """The smallest request that satisfies all of these."""
        requests = list(specs)
        hidden = set[int]().union(*(spec.hidden for spec in requests))
        return PromptSpec(tuple(sorted(hidden)), max((spec.count for spec in requests), default=0))


@dataclass
class Captures:
    """The scores and states that a pass kept, as its spec requests.

    scores {layer: [B,R,K|1,S] float32, -inf beyond a row's root}; covered [B]: how many slots were
    scored; states {layer: [B,W,d]}. A speculative step adds, for drafters: the target, the logits
    [B,T,V] of its verify pass, and accepted [B], the last accepted node.
    """

    spec: CaptureSpec = CaptureSpec()
    scores: dict[int, Tensor] = field(default_factory=dict)
    covered: Tensor | None = None
    states: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    accepted: Tensor | None = None
    target: Any = None
