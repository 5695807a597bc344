"""Methods whose drafter is a separate small model, which reads only part of a long prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from longdraft.core.options import Depth, NotNegative, Positive, Share, Widths
from longdraft.drafters import Drafter, Hierarchical, SmallModelDrafter
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, Retrieval, SinkWindow
from longdraft.views.retrieval import last_layer


def sd(target: LM, small: LM, gamma: Depth = 7, reads: NotNegative = 2048) -> Drafter:
    """A small model drafts gamma tokens.

    It reads the prompt's first 16 and last `reads` tokens (0: the whole prompt).
    """
    return SmallModelDrafter(small, Full(), [1] * gamma, target.vocab, reads, target.depth)


def budgetdraft(
    target: LM,
    small: LM,
    gamma: Depth = 7,
    budget: Positive = 256,
    chunk: Positive = 8,
    score: Literal["obs_window", "last_query_mean_key", "last_key"] = "obs_window",
    every: NotNegative = 0,
    reads: NotNegative = 2048,
) -> Drafter:
    """A small model drafts gamma tokens and attends to the prompt's best chunks and new tokens.

    budget: slots of these chunks.
    every: select chunks again after this many decoding steps (0: never). reads: the small model
    reads only the prompt's first 16 and last `reads` tokens, at least `budget`, and chunks are
    selected among these (0: the whole prompt).
    """
    if budget < 3 * chunk:
        raise InputError(f"option budget is {budget}: give {3 * chunk} or more, three chunks")
    policy = Chunks(budget, chunk, score, every=every)
    most = reads and max(reads, budget)
    return SmallModelDrafter(small, policy, [1] * gamma, target.vocab, most, target.depth)


def specextend(
    target: LM,
    small: LM,
    widths: Widths = (4, 8, 8, 8),
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    chunk: Positive = 32,
    every: Positive = 4,
) -> Drafter:
    """A small model drafts a tree and attends to chunks that the target attended to.

    It reads the whole prompt.
    """
    policy = Retrieval(keep_ratio, min_budget, chunk, every, last_layer(target))
    return SmallModelDrafter(small, policy, list(widths), target.vocab, depth=target.depth)


def triforce(
    target: LM,
    small: LM,
    gamma: Depth = 6,
    inner: Depth = 2,
    budget: Annotated[int, Field(ge=24)] = 1024,
    sink: NotNegative = 16,
    window: Positive = 256,
    reads: NotNegative = 1024,
) -> Drafter:
    """The target drafts over part of the prompt, and a small model drafts for it.

    The target drafts gamma tokens over `budget` slots; the small model drafts `inner` at a time.
    The small model attends to `sink` and `window` slots (published: budget 4096, inner 1). reads:
    it reads the prompt's first 16 and last `reads` tokens, at least `window` (0: the whole prompt).
    """
    policy = SinkWindow(sink, 0.0, window)
    drafter = SmallModelDrafter(
        small, policy, [1] * inner, target.vocab, reads and max(reads, window), target.depth
    )
    return Hierarchical(target, Chunks(budget, 8, "last_query_mean_key"), drafter, gamma)
