"""Methods in which the target drafts for itself and reads only part of its KV cache, and their controls."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from longdraft.core.options import Depth, Nodes, NotNegative, Positive, Share, Widths
from longdraft.drafters import Drafter, Reuse, SelfDrafter, Sequential
from longdraft.models.lm import LM
from longdraft.views import Guided, Quest, RandomSlots, SinkWindow, SnapKV

Score = Literal["logits", "weights"]
NGram = Annotated[int, Field(ge=2, le=512)]


def magicdec_stream(
    target: LM, gamma: Depth = 7, sink: NotNegative = 4, keep_ratio: Share = 0.07, min_budget: Positive = 256
) -> Drafter:
    """The target drafts gamma tokens and reads the first `sink` and the latest slots, keep_ratio of the context."""
    return SelfDrafter(target, SinkWindow(sink, keep_ratio, min_budget), [1] * gamma)


def magicdec_snapkv(target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256) -> Drafter:
    """The target drafts gamma tokens and reads the part of the prompt that the prompt's last queries attended to."""
    return SelfDrafter(target, SnapKV(keep_ratio, min_budget), [1] * gamma)


def magicdec_quest(
    target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256, page: Positive = 16
) -> Drafter:
    """The target drafts gamma tokens; each query reads the cache pages with the highest upper bound on its scores."""
    return SelfDrafter(target, Quest(keep_ratio, min_budget, page), [1] * gamma)


def vegas(
    target: LM,
    gamma: Depth = 7,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
    rows: Literal["mean", "ends"] = "mean",
    reach: NotNegative = 8,
) -> Drafter:
    """The target drafts gamma tokens and reads the slots that the last verification's queries scored highest.

    As in the paper: score=logits, rows=ends, reach=0. The defaults measured better (docs/log.md).
    """
    return SelfDrafter(target, Guided(keep_ratio, min_budget, score, rows, reach), [1] * gamma)


def vegas_tree(
    target: LM,
    widths: Widths = (3, 4, 4, 4),
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
) -> Drafter:
    """Like vegas, but drafts a tree with `widths` nodes per depth."""
    return SelfDrafter(target, Guided(keep_ratio, min_budget, score), list(widths))


def vegas_reuse(
    target: LM,
    gamma: Depth = 4,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
    n: NGram = 4,
    topk: Nodes = 8,
) -> Drafter:
    """Vegas, with the `topk` commonest n-grams that began with its first token added below that token."""
    return Sequential(vegas(target, gamma, keep_ratio, min_budget, score), Reuse(n, topk))


def random_picks(
    target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256, seed: NotNegative = 0
) -> Drafter:
    """Control: the target drafts and reads randomly selected slots, as many as vegas reads."""
    return SelfDrafter(target, RandomSlots(keep_ratio, min_budget, seed), [1] * gamma)


def recents(target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256) -> Drafter:
    """Control: the target drafts and reads only the latest slots, as many as vegas reads."""
    return SelfDrafter(target, SinkWindow(0, keep_ratio, min_budget), [1] * gamma)
