"""Methods whose drafter has weights trained for the target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from longdraft.core.options import (
    MAX_DEPTH,
    MAX_NODES,
    Depth,
    Nodes,
    NotNegative,
    Positive,
    Share,
    Widths,
)
from longdraft.drafters import (
    DFlash,
    Drafter,
    Eagle,
    Glide,
    GlideDrafter,
    Heads,
    Medusa,
    Mtp,
    Reuse,
    Sequential,
)
from longdraft.drafters.dflash.block import DFlashBlock
from longdraft.drafters.eagle.block import EagleBlock
from longdraft.drafters.heads.drafter import SPARSE, ChainedHeads, MedusaHeads, cartesian
from longdraft.drafters.marginals import BestPaths
from longdraft.drafters.mtp.block import MtpLayers
from longdraft.errors import InputError
from longdraft.methods.self_speculative import NGram, Score
from longdraft.models.lm import LM
from longdraft.views import Guided, Partial

MaybeDepth = Annotated[int, Field(ge=0, le=MAX_DEPTH)]
MaybeNodes = Annotated[int, Field(ge=0, le=MAX_NODES)]


def longspec(
    target: LM,
    block: Glide,
    widths: Widths = (4, 16, 16, 16, 16),
    window: NotNegative = 0,
    gamma: MaybeDepth = 0,
    nodes: MaybeNodes = 0,
) -> Drafter:
    """A block that attends to the target's KV cache drafts a tree with `widths` nodes per depth.

    window: slots of the block's own cache that it attends to (0: as trained). gamma: draft a chain
    of this many tokens instead of a tree (0: a tree). nodes: draft a chain (of gamma tokens, or as
    deep as `widths`) and this many of the likeliest paths by its distributions (0: no).
    """
    return GlideDrafter(block, [1] * gamma or list(widths), window=window, nodes=nodes)


def longspec_chain(target: LM, block: Glide, gamma: Depth = 5, window: NotNegative = 0) -> Drafter:
    """A block that attends to the target's KV cache drafts a chain of gamma tokens.

    window 0: as the block was trained.
    """
    return GlideDrafter(block, [1] * gamma, window=window)


def longspec_guided(
    target: LM,
    block: Glide,
    widths: Widths = (4, 16, 16, 16, 16),
    window: NotNegative = 0,
    keep_ratio: Share = 0.01,
    min_budget: Positive = 1024,
    score: Score = "weights",
) -> Drafter:
    """Like longspec, but the block reads only the slots that the last verification scored best."""
    return GlideDrafter(block, list(widths), Guided(keep_ratio, min_budget, score), window)


SparseOrWidths = Annotated[
    Widths | Literal["sparse"], Field(description="sparse, or nodes per depth like 4,2,2")
]


def medusa(
    target: LM,
    heads: MedusaHeads,
    widths: SparseOrWidths = "sparse",
    nodes: MaybeNodes = 0,
) -> Drafter:
    """Heads on the last verified hidden state predict later tokens.

    widths: nodes per depth, or a sparse tree of 63 nodes. The sparse tree ends with the last head.
    nodes: instead of a tree of fixed shape, draft this many of the likeliest paths (0: the fixed
    shape).
    """
    if nodes:
        return Medusa(target, heads, BestPaths(nodes))
    return Medusa(
        target, heads, SPARSE[: len(heads)] if widths == "sparse" else cartesian(list(widths))
    )


def tokenswift(
    target: LM,
    heads: ChainedHeads,
    budget: Positive = 4096,
    sink: NotNegative = 16,
    widths: Widths = (1, 3, 3, 3),
    n: NGram = 4,
    topk: Nodes = 20,
    choice: Literal["count", "random"] = "count",
) -> Drafter:
    """The target drafts one token over part of its cache, and chained heads draft the next ones.

    budget: the slots that the target reads. n-grams join below.
    """
    if budget <= sink:
        raise InputError(f"option budget is {budget}: give {sink + 1} or more, one more than sink")
    return Sequential(
        Heads(target, heads, Partial(budget, sink), list(widths)), Reuse(n, topk, 1, choice)
    )


def eagle(
    target: LM,
    block: EagleBlock,
    topk: Nodes = 10,
    levels: MaybeDepth = 7,
    nodes: Annotated[int, Field(ge=2, le=1024)] = 60,
    reach: Positive = 2048,
    window: NotNegative = 512,
    sink: NotNegative = 4,
) -> Drafter:
    """A layer on the target's hidden states grows a tree and keeps its likeliest nodes.

    nodes: how many it keeps, the root included. The layer attends to all of a text of up to `reach`
    tokens, and to the first `sink` and latest `window` ones of a longer text (window 0: to the
    latest `reach` of the prompt and all that follow).
    """
    return Eagle(target, block, topk, levels, nodes, reach, window, sink)


def mtp(
    target: LM,
    layers: MtpLayers,
    widths: Widths = (1, 1, 1),
    sink: NotNegative = 4,
    window: Positive = 512,
) -> Drafter:
    """The target checkpoint's own multi-token-prediction layers draft a tree.

    widths: nodes per depth. Depths beyond the number of layers use the last layer again. sink,
    window: the first and the latest tokens that a layer attends to.
    """
    return Mtp(layers, list(widths), sink, window)


def dflash(
    target: LM, block: DFlashBlock, nodes: Nodes = 8, gamma: MaybeDepth = 0, window: NotNegative = 0
) -> Drafter:
    """A block on the target's hidden states drafts all depths in one pass.

    The draft is a tree of the `nodes` best paths.
    gamma: draft a chain of this many tokens instead of a tree (0: a tree). window: positions whose
    features the block attends to (0: as it was trained).
    """
    return DFlash(target, block, nodes, gamma, window)
