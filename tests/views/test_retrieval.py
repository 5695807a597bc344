"""SpecExtend's retrieval: chunks by the last accepted node's weights, chosen every few rounds, for
one text alone.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.checks import PENALTY, check_full_acceptance, check_lossless

from longdraft import build, stream
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.drafters import Lookup, SelfDrafter, Sequential, SmallModelDrafter
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.views import Retrieval, View

CHUNK = 4


def cache_of(lengths: list[int]) -> KVCache:
    cache = KVCache(len(lengths), 8)
    cache.length += torch.tensor(lengths)
    return cache


def scored(roots: list[int], accepted: list[int], nodes: int = 3, seed: int = 0) -> Captures:
    """Weights that each node of a tree gave to slots 0..root, in layers 0 and 2, as a round leaves
    them.
    """
    g = torch.Generator().manual_seed(seed)
    table = torch.rand(2, len(roots), nodes, 1, max(roots) + 1, generator=g)
    for b, n in enumerate(roots):
        table[:, b, ..., n + 1 :] = float("-inf")
    captured = Captures(
        CaptureSpec("all", of="weights"), {0: table[0], 2: table[1]}, torch.tensor(roots) + 1
    )
    captured.accepted = torch.tensor(accepted)
    return captured


def first(views: list[View]) -> list[int]:
    """Of each view, when it was first shown."""
    ids = [id(v) for v in views]
    return [ids.index(i) for i in ids]


def seen(view: View, layer: int, b: int) -> set[int]:
    indices = view.indices[0 if view.layers is None else view.layers[layer], b]
    return {int(p) for p in indices if p >= 0}


@pytest.mark.parametrize("only", [None, 2, 0])
def test_the_best_chunks_by_the_last_accepted_nodes_weights(only):
    roots = [42, 63, 11]
    accepted = [2, 0, 1]
    captured = scored(roots, accepted)
    policy = Retrieval(0.01, 16, CHUNK, only=only)
    policy.update(cache_of([n + 1 + a for n, a in zip(roots, accepted, strict=True)]), captured)
    view = policy.view(cache_of(roots))
    for b, n in enumerate(roots):
        full = (n + 1) // CHUNK
        for layer in (0, 2):
            weights = captured.scores[layer if only is None else only][b, accepted[b], 0]
            means = [float(weights[c * CHUNK : (c + 1) * CHUNK].mean()) for c in range(full)]
            best = sorted(range(full), key=lambda c: -means[c])[: 16 // CHUNK]
            want = {c * CHUNK + i for c in best for i in range(CHUNK)} if n + 1 > 16 else set()
            assert seen(view, layer, b) == want
        assert int(view.tail_start[b]) == (full * CHUNK if n + 1 > 16 else 0)


def test_chosen_every_few_rounds_and_new_text_joins():
    policy = Retrieval(0.01, 8, CHUNK, every=3)
    views = []
    for n in range(20, 29):
        captures = policy.captures()
        captured = scored([n], [0], seed=n) if captures.rows else Captures()
        assert (captures.rows, captures.of) == (
            ("all", "weights") if (n - 20) % 3 == 0 else (None, "logits")
        )
        policy.update(cache_of([n + 1]), captured)
        views.append(policy.view(cache_of([n + 1])))
    assert first(views) == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    assert [int(v.tail_start[0]) for v in views[::3]] == [20, 24, 24]  # all from there on is seen


def test_beside_taps_of_every_round_it_still_waits():
    policy = Retrieval(0.01, 8, CHUNK, every=2)
    views = []
    for n in range(20, 24):
        policy.update(cache_of([n + 1]), scored([n], [0], seed=n))
        views.append(policy.view(cache_of([n + 1])))
    assert first(views) == [0, 0, 2, 2]


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_a_selection_ends_with_its_text(kind):
    lm = tiny.target("llama")
    policy = Retrieval(0.01, 16, CHUNK, every=1000, only=2 if kind == "cross" else None)
    drafter = (
        SelfDrafter(lm, policy, [1])
        if kind == "self"
        else SmallModelDrafter(random_lm(lm, 1), policy, [1], lm.vocab)
    )
    for length in (70, 40):
        shown = []
        for _ in stream(lm, tiny.prompts(length), drafter, 12):
            shown.append(policy.view(cache_of([0])))
            assert int(shown[-1].tail_start[0]) == length // CHUNK * CHUNK
        assert len(shown) > 2 and set(first(shown)) == {0}


@pytest.mark.parametrize("model", ["llama", "gpt-oss"])
def test_a_budget_of_the_context_accepts_everything(model):
    check_full_acceptance(
        lambda t: SelfDrafter(t, Retrieval(0.07, 999), [1] * 5), 5, model, lengths=(70, 31)
    )


def test_in_one_tree_with_a_lookup():
    policy = Retrieval(0.07, 16, CHUNK)
    check_lossless(
        lambda t: Sequential(SelfDrafter(t, policy, [2, 2]), Lookup(1, 3)),
        "llama",
        PENALTY,
        (70, 31),
    )


@pytest.mark.parametrize("model", ["llama", "llama-torch", "gpt-oss", "mistral-window"])
def test_specextend_taps_the_one_layer_that_it_reads(model):
    """Scores of the others would be a cost that the method does not have."""
    lm = tiny.target(model)
    tapped = []
    drafter = build("specextend", lm, random_lm(lm, 1), min_budget=16)
    update = drafter.update

    def watched(seqs, tree, verdict, captured):
        tapped.append(sorted(captured.scores))
        update(seqs, tree, verdict, captured)

    drafter.update = watched
    for _ in stream(lm, tiny.prompts(70), drafter, 12):
        pass
    full = [i for i in range(lm.config.num_hidden_layers) if i not in lm.windows]
    assert tapped[0] == full[-1:] and all(t in ([], full[-1:]) for t in tapped)
