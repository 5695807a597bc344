"""TriForce's levels: each is lossless in itself, and none leaves a trace in a cache that another one reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny
import torch
from checks import PENALTY, SAMPLERS, SEED, check_full_acceptance

from longdraft import Stats
from longdraft.core.cache import KVCache
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import match
from longdraft.drafters import Drafter, Hierarchical, SelfDrafter, SmallModelDrafter
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
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
each_model = pytest.mark.parametrize("model", ["llama", "gpt-oss", "mistral-window"])


def small(target: LM, policy: Policy | None = None) -> SmallModelDrafter:
    return SmallModelDrafter(random_lm(target, 1), policy or SinkWindow(2, 0.0, 8), [1, 1], target.vocab)


def begun(lm: LM, drafter: Drafter, sampler=SAMPLERS["T=1"], limit: int = 60, lengths=LENGTHS) -> Sequences:
    seqs = prefill(lm, tiny.prompts(*lengths), limit, sampler, SEED, ())
    drafter.start(seqs)
    step(lm, drafter, seqs, match, Stats(), draft=False)
    return seqs


def check_cache(lm: LM, cache: KVCache, tokens: list[list[int]]) -> None:
    """A cache holds what the model computes of a prefix of each row's tokens."""
    for b, row in enumerate(tokens):
        n, fresh = int(cache.length[b]), lm.new_cache(1, 128)
        lm.prefill(row[:n], fresh)
        for layer in cache.layers if n else []:
            for found, want in zip(cache.read(layer, b), fresh.read(layer, 0), strict=True):
                assert torch.allclose(found[:, :n], want[:, :n], atol=1e-4), f"row {b}, layer {layer}"


def check_caches(model: str = "llama", policy: Callable[[], Policy] = POLICIES["chunks"]) -> None:
    """After every round the target's cache and the small model's hold what was said, and nothing of a middle level."""
    lm = tiny.target(model)
    inner = small(lm, Full())  # under a sparse view its own keys would be approximations, as published
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


@each_policy
@each_model
def test_caches_hold_the_text_after_every_round(model, policy):
    check_caches(model, policy)


@each_policy
@each_model
@pytest.mark.parametrize("sampler", [SAMPLERS["greedy"], PENALTY], ids=["greedy", "sampled"])
def test_the_middle_level_is_lossless(model, sampler, policy):
    """Whatever drafts for it, it says what the target says under the view, token by token."""
    lm, trees = tiny.target(model), []
    for inner in (
        Drafter(),
        small(lm),
        SelfDrafter(lm, Full(), [1, 1]),
        SelfDrafter(lm, SinkWindow(1, 0.0, 4), [2, 2]),
    ):
        drafter = Hierarchical(lm, policy(), inner, 5)
        with torch.inference_mode():
            seqs = begun(lm, drafter, sampler)
            before = (seqs.length.clone(), seqs.tokens.clone(), seqs.cache.length.clone())
            trees.append(drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room)))
        assert all(
            torch.equal(a, b) for a, b in zip(before, (seqs.length, seqs.tokens, seqs.cache.length), strict=True)
        )
        assert trees[-1].size == 6 and not bool(seqs.done.any())
        assert torch.equal(trees[-1].tokens, trees[0].tokens)
        assert torch.equal(trees[-1].parent, trees[0].parent)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_full_view_in_the_middle_accepts_everything(sampler):
    check_full_acceptance(lambda t: Hierarchical(t, Full(), small(t), 4), 4, "llama", sampler, (70, 31))


def test_an_exact_drafter_saves_middle_passes():
    """The inner drafts are used: with the target itself as the inner drafter, 6 tokens take 2 middle passes, not 6."""
    lm, passes = tiny.target("llama"), []
    for inner in (Drafter(), SelfDrafter(lm, Full(), [1, 1])):
        drafter = Hierarchical(lm, Full(), inner, 6)
        with torch.inference_mode():
            seqs = begun(lm, drafter, lengths=(40,))
            seen = []
            inner.update = lambda *a, seen=seen: seen.append(a)  # type: ignore[method-assign]
            drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        passes.append(len(seen))
    assert passes == [6, 2]


def test_rows_end_apart():
    """Rows with different room draft to their own ends; a row that is done drafts nothing."""
    lm = tiny.target("llama")
    drafter = Hierarchical(lm, Full(), small(lm), 4)
    with torch.inference_mode():
        seqs = begun(lm, drafter)
        seqs.limit = torch.tensor([3, 40, 1])
        seqs.done = torch.tensor([False, False, True])
        tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    assert (tree.parent > -2).sum(1).tolist() == [1 + 1, 1 + 4, 1]  # a row's last token comes from verification


def test_the_middle_stops_at_an_end_token():
    lm = tiny.target("llama")
    drafter = Hierarchical(lm, Full(), small(lm), 6)
    with torch.inference_mode():
        seqs = begun(lm, drafter, lengths=(40,))
        free = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        seqs.eos = [(int(free.tokens[0, 3]),)]
        tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
    first = free.tokens[0, 1:].tolist().index(seqs.eos[0][0])
    assert tree.tokens[0].tolist() == free.tokens[0, : first + 2].tolist()
