"""A target's and a small model's caches after rounds with a middle level."""

from __future__ import annotations

from collections.abc import Callable

import torch
from support import tiny
from support.checks import SAMPLERS, SEED

from longdraft import Stats
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.verify import match
from longdraft.drafters import Drafter, Hierarchical, SmallModelDrafter
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.engine.generate import prefill, step
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, Guided, Policy, SinkWindow

LENGTHS = (70, 31, 1)
POLICIES: dict[str, Callable[[], Policy]] = {
    "chunks": lambda: Chunks(24, 8, "last_query_mean_key"),
    "guided": lambda: Guided(0.07, 16),
    "window": lambda: SinkWindow(2, 0.07, 16),
}


def small(target: LM, policy: Policy | None = None) -> SmallModelDrafter:
    return SmallModelDrafter(
        random_lm(target, 1), policy or SinkWindow(2, 0.0, 8), [1, 1], target.vocab
    )


def begun(
    lm: LM, drafter: Drafter, sampler=SAMPLERS["T=1"], limit: int = 60, lengths=LENGTHS
) -> Sequences:
    seqs = prefill(lm, tiny.prompts(*lengths), limit, sampler, SEED, ())
    drafter.start(seqs)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    return seqs


def check_cache(lm: LM, cache: KVCache, tokens: list[list[int]]) -> None:
    """A cache holds what the model computes of a prefix of each row's tokens."""
    for b, row in enumerate(tokens):
        n = int(cache.length[b])
        fresh = lm.new_cache(1, 128)
        lm.prefill(row[:n], fresh)
        for layer in cache.layers if n else []:
            for found, want in zip(cache.read(layer, b), fresh.read(layer, 0), strict=True):
                assert torch.allclose(found[:, :n], want[:, :n], atol=1e-4), (
                    f"row {b}, layer {layer}"
                )


def check_caches(model: str = "llama", policy: Callable[[], Policy] = POLICIES["chunks"]) -> None:
    """After every round the target's cache and the small model's hold what was said, and nothing of
    a middle level.
    """
    lm = tiny.target(model)
    # under a sparse view its own keys would be approximations, as published
    inner = small(lm, Full())
    drafter = Hierarchical(lm, policy(), inner, 4)
    with torch.inference_mode():
        seqs = begun(lm, drafter)
        for _ in range(8):
            step(lm, drafter, seqs, match, Stats())
            text = [seqs.tokens[b, : int(n)].tolist() for b, n in enumerate(seqs.length)]
            assert seqs.cache.length.tolist() == [len(row) - 1 for row in text]
            assert bool((inner.cache.length <= seqs.cache.length).all())
            check_cache(lm, seqs.cache, text)
            check_cache(inner.small, inner.cache, text)
    assert not bool(seqs.done.any())
