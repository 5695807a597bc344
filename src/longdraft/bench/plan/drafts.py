"""What a method's draft costs, in counts: the passes that make it, and the nodes that it adds to
the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from longdraft.bench.plan.outlines import Target
from longdraft.costs.counts import ModelCounts, counts_of, pass_over
from longdraft.costs.passes import Pass, PassCosts
from longdraft.drafters import (
    DFlash,
    Eagle,
    Heads,
    Hierarchical,
    Lookup,
    Medusa,
    Mtp,
    Recycle,
    Reuse,
    SelfDrafter,
    Sequential,
    SmallModelDrafter,
    Suffix,
)
from longdraft.drafters.block_costs import Read, weights_read
from longdraft.drafters.marginals import BestPaths
from longdraft.drafters.small_model.drafter import SINK
from longdraft.drafters.vocabulary import known_count
from longdraft.models.memory_traffic import InCodes, Seen, head_size, size_of
from longdraft.views import Coded, Policy, Quest
from longdraft.views.base import budget_of

INNER = 0.7  # acceptance assumed of the inner drafts of a hierarchy


@dataclass(frozen=True)
class DraftPass:
    """A pass that drafts. layers: its depth as a share of the target's; None: it calls a drafter's
    own block in Python.

    engine: whether it is the verification of a whole step inside a draft.
    """

    counts: Pass
    layers: float | None = 1.0
    engine: bool = False

    def seconds(self, costs: PassCosts) -> float:
        if self.layers is None:
            own = replace(costs, call=costs.block, chained=costs.block, read=costs.module)
        else:
            own = replace(costs, call=self.layers * costs.call, chained=self.layers * costs.chained)
        return own.seconds(self.counts) + self.engine * costs.step


@dataclass(frozen=True)
class Place:
    """Where a draft is made. lengths: committed slots of rows. copy: counts of what drafts in the
    target's place.
    """

    target: Target
    lengths: list[int]
    copy: ModelCounts

    @property
    def slot(self) -> int:
        """Bytes of one layer's key and value."""
        return max((k.slot for k in self.target.counts.keys), default=0)

    def block(
        self, nodes: int, read: Read, keys: float = 0.0, vocab: int = 0, compiled: bool = False
    ) -> DraftPass:
        """A call of a drafter's own block. nodes: of a row. keys: bytes, of a row. compiled:
        natively.
        """
        rows = len(self.lengths)
        drawn = float(nodes * rows * (vocab or self.target.counts.vocab))
        products = read.weights * nodes * rows
        counts = Pass(
            rows,
            rows * nodes,
            read.bytes(compiled),
            products,
            rows * keys,
            drawn=drawn,
            chained=True,
        )
        return DraftPass(counts, 1.0 if compiled else None)


def shown(policy: Policy) -> tuple[Seen | None, InCodes | None]:
    """How many slots a policy's view will show, before there is a text (None: all), and how many of
    these as codes.
    """
    if isinstance(policy, Coded):
        seen, _ = shown(policy.policy)
        own = policy.recent * 3 // 2  # on average
        return seen, InCodes(
            lambda n: [max(0, k - own) for k in (n if seen is None else seen(n))], policy.bits
        )
    p: Any = policy
    if hasattr(p, "keep_ratio"):
        return (lambda lengths: [budget_of(n, p.keep_ratio, p.min_budget) for n in lengths]), None
    if hasattr(p, "budget"):
        return (lambda lengths: [min(n, p.budget) for n in lengths]), None
    return None, None


def spread(total: int, depth: int, width: int) -> list[int]:
    """So many nodes on `depth` levels, more on the first ones, at most `width` on each."""
    return [min(width, total // depth + (i < total % depth)) for i in range(depth)]


@singledispatch
def shape(drafter: Any, depth: int, width: int) -> list[int]:
    """Nodes of a row on each level of a draft `depth` levels deep, at most `width` on each."""
    return [min(n, width) for n in drafter.widths[:depth]]


@singledispatch
def passes(drafter: Any, at: Place, depth: int, width: int) -> list[DraftPass]:
    """The passes of such a draft; where it is found in the text there are none."""
    return []


def beam(drafter: Any, depth: int, width: int) -> list[int]:
    """Nodes of a row in each pass of a draft that grows level by level: the root, then each level
    but the last.
    """
    return [1, *shape(drafter, depth, width)][:depth]


@passes.register
def _(drafter: SelfDrafter, at: Place, depth: int, width: int) -> list[DraftPass]:
    seen, codes = shown(drafter.policy)
    chains = at.target.chains and drafter.is_chain and not isinstance(drafter.policy, Quest)
    return [
        DraftPass(
            pass_over(at.copy, at.lengths, n, seen=seen, codes=codes, chained=chains and i > 0)
        )
        for i, n in enumerate(beam(drafter, depth, width))
    ]


@passes.register
def _(drafter: SmallModelDrafter, at: Place, depth: int, width: int) -> list[DraftPass]:
    """The root's pass also runs the tokens that the small model lacks, usually one."""
    small = counts_of(drafter.small)
    tail = drafter.tail
    lengths = [min(n, SINK + tail) for n in at.lengths] if tail else at.lengths
    seen, _ = shown(drafter.policy)
    chains = at.target.chains and drafter.is_chain
    layers = small.depth / at.target.lm.depth
    return [
        DraftPass(pass_over(small, lengths, n, seen=seen, chained=chains and i > 0), layers)
        for i, n in enumerate([2, *beam(drafter, depth, width)[1:]])
    ]


@passes.register
def _(drafter: Hierarchical, at: Place, depth: int, width: int) -> list[DraftPass]:
    """A middle step verifies an inner draft under the view; its yield is that of inner drafts
    accepted at INNER.
    """
    inner: Any = drafter.inner
    seen, _ = shown(drafter.policy)
    deep = inner.max_depth
    tokens = sum(INNER**i for i in range(deep + 1))
    verified = 1 + sum(shape(inner, deep, width))
    step = [DraftPass(pass_over(at.target.counts, at.lengths, verified, seen=seen), engine=True)]
    return (step + passes(inner, at, deep, width)) * max(1, round(depth / tokens))


@passes.register
def _(drafter: Heads, at: Place, depth: int, width: int) -> list[DraftPass]:
    seen, _ = shown(drafter.policy)
    heads = at.block(len(drafter.module), weights_read(size_of(drafter.module), at.target.lm, None))
    return [DraftPass(pass_over(at.target.counts, at.lengths, 1, seen=seen)), heads]


@passes.register
def _(drafter: Medusa, at: Place, depth: int, width: int) -> list[DraftPass]:
    return [
        at.block(len(drafter.module), weights_read(size_of(drafter.module), at.target.lm, None))
    ]


@passes.register
def _(drafter: Eagle, at: Place, depth: int, width: int) -> list[DraftPass]:
    """The first pass reads the tokens that were accepted, and each later one the best nodes of a
    level.
    """
    block = drafter.block
    longest = max(at.lengths)
    head = 0.0 if hasattr(block, "head") else float(head_size(at.target.lm))
    read = Read(size_of(block), head, at.target.lm.dtype.itemsize)
    seen = longest if longest <= drafter.span.reach else drafter.span.most
    keys = 2.0 * block.kv * block.dim * at.target.lm.dtype.itemsize * seen
    counts = [2, *[min(drafter.topk, width)] * (depth - 1)]
    return [at.block(n, read, keys, block.known, at.target.chains) for n in counts]


@passes.register
def _(drafter: Mtp, at: Place, depth: int, width: int) -> list[DraftPass]:
    weights = drafter.module.weights
    rows = len(at.lengths)
    lm = at.target.lm
    keys = float(at.slot * min(max(at.lengths), sum(drafter.most)))

    def call(n: int) -> DraftPass:
        return at.block(
            n, weights_read(weights.read(n * rows), lm, None), keys, compiled=at.target.chains
        )

    return [call(n) for n in beam(drafter, depth, width)]


@passes.register
def _(drafter: DFlash, at: Place, depth: int, width: int) -> list[DraftPass]:
    block = drafter.block
    seen = min(max(at.lengths), drafter.window)
    read = weights_read(size_of(block), at.target.lm, block.vocabulary)
    keys = len(block.causal) * at.slot * seen
    return [
        at.block(
            block.slots, read, keys, known_count(at.target.lm, block.vocabulary), at.target.chains
        )
    ]


@passes.register
def _(drafter: Sequential, at: Place, depth: int, width: int) -> list[DraftPass]:
    return [p for d in drafter.drafters for p in passes(d, at, min(depth, d.max_depth), width)]


@shape.register(Lookup)
@shape.register(Suffix)
@shape.register(Hierarchical)
def _(drafter: Any, depth: int, width: int) -> list[int]:
    return [1] * depth


@shape.register
def _(drafter: Recycle, depth: int, width: int) -> list[int]:
    depths = [0]
    for parent, _ in drafter.template:
        depths.append(depths[parent] + 1)
    return [min(width, depths.count(d)) for d in range(1, depth + 1)]


@shape.register
def _(drafter: Reuse, depth: int, width: int) -> list[int]:
    """Below one node; the paths seldom share a node."""
    return [0 if d <= drafter.below else min(drafter.topk, width) for d in range(1, depth + 1)]


@shape.register
def _(drafter: Heads, depth: int, width: int) -> list[int]:
    return [min(width, sum(level)) for level in drafter.counts[:depth]]


@shape.register
def _(drafter: Medusa, depth: int, width: int) -> list[int]:
    if isinstance(drafter.shape, BestPaths):
        return spread(drafter.shape.nodes, depth, width)
    return [min(width, sum(level)) for level in drafter.shape[:depth]]


@shape.register
def _(drafter: Eagle, depth: int, width: int) -> list[int]:
    candidates = drafter.topk + (depth - 1) * drafter.topk**2
    return spread(
        min(drafter.nodes - 1, candidates), depth, min(width, drafter.topk if depth == 1 else width)
    )


@shape.register
def _(drafter: DFlash, depth: int, width: int) -> list[int]:
    return [1] * depth if drafter.is_chain else spread(drafter.shape.nodes, depth, width)


@shape.register
def _(drafter: Sequential, depth: int, width: int) -> list[int]:
    """Each drafter has the width that those before it leave."""
    total = [0] * depth
    for d in drafter.drafters:
        left = max(width - max(total), 0)
        for i, n in enumerate(shape(d, min(depth, d.max_depth), left)):
            total[i] += n
    return total


def breadth(drafter: Any, depth: int, width: int) -> list[int]:
    """Nodes of each level on which acceptance depends: without the n-grams that are added to other
    drafts.
    """
    first = drafter.drafters[0] if isinstance(drafter, Sequential) else drafter
    return shape(first, min(depth, first.max_depth), width)
