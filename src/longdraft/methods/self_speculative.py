"""Methods in which the target drafts for itself over part of its KV cache, and their controls."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from longdraft.core.options import Depth, Nodes, NotNegative, Positive, Share, Widths
from longdraft.drafters import Drafter, Reuse, SelfDrafter, Sequential
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import slot_bytes, weights_of
from longdraft.views import Coded, Full, Guided, Policy, Quest, RandomSlots, SinkWindow, SnapKV

Score = Literal["logits", "weights"]
NGram = Annotated[int, Field(ge=2, le=512)]
# the minimum share of the bytes of weights that a copy must save to be made for `auto`
WORTH = 0.25
# such a copy reads keys of at least this share of its weights' bytes: they cost little beside these
KEYS = 0.25
# weights of drafts: the target's own, or those of a quantized copy
Weights = Literal["same", "int8", "int4"]
# keys and values that drafts read: those of the cache, or codes of them
DraftKeys = Literal["same", "int8", "int4"]


def _copy(target: LM, draft_weights: Weights) -> LM | None:
    return None if draft_weights == "same" else target.quantized(draft_weights)


def _keys(target: LM, policy: Policy, draft_kv: DraftKeys) -> Policy:
    if draft_kv in ("same", target.kv):
        return policy
    return Coded(policy, 4 if draft_kv == "int4" else 8)


def quantspec(
    target: LM, gamma: Depth = 4, draft_weights: Weights = "int4", draft_kv: DraftKeys = "int4"
) -> Drafter:
    """A quantized copy of the target drafts gamma tokens and reads codes of every key and value.

    The latest 64 to 127 committed slots are read as the target keeps them.
    """
    return SelfDrafter(
        target, _keys(target, Full(), draft_kv), [1] * gamma, _copy(target, draft_weights)
    )


def magicdec_stream(
    target: LM,
    gamma: Depth = 7,
    sink: NotNegative = 4,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    draft_weights: Weights = "same",
    draft_kv: DraftKeys = "same",
) -> Drafter:
    """The target drafts gamma tokens and reads the first `sink` and the latest slots.

    keep_ratio: the share of the context that it reads.
    """
    policy = SinkWindow(sink, keep_ratio, min_budget)
    return SelfDrafter(
        target, _keys(target, policy, draft_kv), [1] * gamma, _copy(target, draft_weights)
    )


def magicdec_snapkv(
    target: LM,
    gamma: Depth = 7,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    draft_weights: Weights = "same",
    draft_kv: DraftKeys = "same",
) -> Drafter:
    """The target drafts gamma tokens and reads slots that the prompt's last queries attended to."""
    policy = SnapKV(keep_ratio, min_budget)
    return SelfDrafter(
        target, _keys(target, policy, draft_kv), [1] * gamma, _copy(target, draft_weights)
    )


def magicdec_quest(
    target: LM,
    gamma: Depth = 7,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    page: Positive = 16,
    draft_weights: Weights = "same",
) -> Drafter:
    """The target drafts gamma tokens and reads the cache pages with the best bounds.

    Each query reads the pages with the highest upper bound on its scores.
    """
    return SelfDrafter(
        target, Quest(keep_ratio, min_budget, page), [1] * gamma, _copy(target, draft_weights)
    )


def vegas(
    target: LM,
    gamma: Depth = 7,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
    rows: Literal["mean", "ends"] = "mean",
    reach: NotNegative = 8,
    draft_weights: Weights = "same",
    draft_kv: DraftKeys = "same",
) -> Drafter:
    """The target drafts gamma tokens and reads the slots with the last verification's best scores.

    The paper has score=logits, rows=ends, reach=0. The defaults measured better (docs/log).
    """
    policy = Guided(keep_ratio, min_budget, score, rows, reach)
    return SelfDrafter(
        target, _keys(target, policy, draft_kv), [1] * gamma, _copy(target, draft_weights)
    )


def vegas_tree(
    target: LM,
    widths: Widths = (3, 4, 4, 4),
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
    draft_weights: Weights = "same",
    draft_kv: DraftKeys = "same",
) -> Drafter:
    """Like vegas, but drafts a tree with `widths` nodes per depth."""
    policy = Guided(keep_ratio, min_budget, score)
    return SelfDrafter(
        target, _keys(target, policy, draft_kv), list(widths), _copy(target, draft_weights)
    )


def vegas_reuse(
    target: LM,
    gamma: Depth = 4,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    score: Score = "weights",
    n: NGram = 4,
    topk: Nodes = 8,
    draft_weights: Weights = "same",
    draft_kv: DraftKeys = "same",
) -> Drafter:
    """Vegas with n-grams below its first token.

    They are the `topk` commonest n-grams that began with that token.
    """
    drafter = vegas(
        target, gamma, keep_ratio, min_budget, score, draft_weights=draft_weights, draft_kv=draft_kv
    )
    return Sequential(drafter, Reuse(n, topk))


def kind_of_copy(target: LM) -> str | None:
    """The kind of the copy by which `auto` drafts.

    8 bits, where a small model's drafts are accepted far more often than in 4 (docs/log), unless
    the target has 8 bits itself. None where a copy saves too little, the kernels that read packed
    weights do not compute the target, or it has experts: a copy has all of them, and a step reads
    few.
    """
    kinds = () if target.experts or target.backend.name != "native" else ("int8", "int4")
    return next((k for k in kinds if target.saving(k) >= WORTH), None)


def by_a_copy(target: LM) -> list[Drafter]:
    """Drafts by a quantized copy for `auto`: at most one drafter, because a copy takes memory.

    Where the keys are few against the copy's weights it reads all of them, and beyond that the best
    ones.
    """
    kind = kind_of_copy(target)
    if kind is None:
        return []
    copy = target.quantized(kind)
    slots = int(KEYS * weights_of(copy).shared / slot_bytes(copy))
    return [SelfDrafter(target, Guided(min_budget=max(slots, 256)), [1] * 7, copy)]


def random_picks(
    target: LM,
    gamma: Depth = 7,
    keep_ratio: Share = 0.07,
    min_budget: Positive = 256,
    seed: NotNegative = 0,
) -> Drafter:
    """Control: the target drafts and reads randomly selected slots, as many as vegas reads."""
    return SelfDrafter(target, RandomSlots(keep_ratio, min_budget, seed), [1] * gamma)


def recents(
    target: LM, gamma: Depth = 7, keep_ratio: Share = 0.07, min_budget: Positive = 256
) -> Drafter:
    """Control: the target drafts and reads only the latest slots, as many as vegas reads."""
    return SelfDrafter(target, SinkWindow(0, keep_ratio, min_budget), [1] * gamma)
