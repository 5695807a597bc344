"""TriForce's levels: each is lossless in itself, and none leaves a trace in a cache that another
one reads.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.checks import PENALTY, SAMPLERS, check_full_acceptance
from support.middle_level import POLICIES, begun, check_caches, small

from longdraft.core.tree import DraftLimits, Tree
from longdraft.drafters import Hierarchical, PlainDecoding, SelfDrafter
from longdraft.views import Full, SinkWindow

each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
each_model = pytest.mark.parametrize("model", ["llama", "gpt-oss", "mistral-window"])


@pytest.mark.full
@each_policy
@each_model
def test_caches_hold_the_text_after_every_round(model, policy):
    check_caches(model, policy)


@pytest.mark.full
@each_policy
@each_model
@pytest.mark.parametrize("sampler", [SAMPLERS["greedy"], PENALTY], ids=["greedy", "sampled"])
def test_the_middle_level_is_lossless(model, sampler, policy):
    """Whatever drafts for it, it says what the target says under the view, token by token."""
    lm = tiny.target(model)
    trees = []
    for inner in (
        PlainDecoding(),
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
            torch.equal(a, b)
            for a, b in zip(before, (seqs.length, seqs.tokens, seqs.cache.length), strict=True)
        )
        assert trees[-1].size == 6 and not bool(seqs.done.any())
        assert torch.equal(trees[-1].tokens, trees[0].tokens)
        assert torch.equal(trees[-1].parent, trees[0].parent)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_full_view_in_the_middle_accepts_everything(sampler):
    check_full_acceptance(
        lambda t: Hierarchical(t, Full(), small(t), 4), 4, "llama", sampler, (70, 31)
    )


def test_an_exact_drafter_saves_middle_passes():
    """The inner drafts are used: with the target itself as the inner drafter, 6 tokens take 2
    middle passes, not 6.
    """
    lm = tiny.target("llama")
    passes = []
    for inner in (PlainDecoding(), SelfDrafter(lm, Full(), [1, 1])):
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
    # a row's last token comes from verification
    assert (tree.parent > -2).sum(1).tolist() == [
        1 + 1,
        1 + 4,
        1,
    ]


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
