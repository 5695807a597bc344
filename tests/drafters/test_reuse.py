"""The n-gram index against counting from scratch, and the trie against the list of paths it must
hold.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import PENALTY, SAMPLERS, check_lossless
from support.structure import branching, check_shape

from longdraft import InputError, Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.drafters import Reuse
from longdraft.drafters.ngram.reuse import NGrams, add_branches

texts = st.lists(st.integers(0, 4), max_size=60)


def counted(text: list[int], n: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """n-gram: count, where it last ended."""
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    last = {g: i + n for i, g in enumerate(grams)}
    return {g: (c, last[g]) for g, c in Counter(grams).items()}


@given(texts, st.integers(2, 4), st.integers(1, 5), st.lists(st.integers(1, 9), max_size=20))
def test_the_index_is_counting_from_scratch(text, n, k, cuts):
    """Whatever pieces the text comes in; of equal counts the latest is first."""
    index = NGrams(n, 1 << 10)
    at = 0
    for cut in [*cuts, len(text)]:
        index.extend(text[at : at + cut])
        at += cut
    table = counted(text, n)
    for key in range(5):
        ranked = sorted((g for g in table if g[0] == key), key=lambda g: table[g], reverse=True)
        assert index.best(key, k) == [g[1:] for g in ranked[:k]]


@given(texts, st.integers(2, 3), st.integers(1, 8))
def test_a_full_index_forgets_what_it_saw_longest_ago(text, n, capacity):
    index = NGrams(n, capacity)
    kept = {}
    for i, token in enumerate(text, 1):
        index.extend([token])
        gram = tuple(text[max(i - n, 0) : i])
        if len(gram) == n:
            kept[gram] = (kept.get(gram, (0, 0))[0] + 1, i)
            if len(kept) > capacity:
                del kept[min(kept, key=lambda g: kept[g][1])]
        assert dict(index.seen) == kept
        assert {g for grams in index.after.values() for g in grams} == set(kept)
        assert all(index.after.values())


def test_random_choice_draws_by_frequency_and_repeats():
    index = NGrams(2, 99)
    index.extend([1, 2] * 30 + [1, 3] * 10 + [1, 4] * 3)
    draws = [index.best(1, 2, seed) for seed in range(200)]
    assert draws == [index.best(1, 2, seed) for seed in range(200)]
    assert all(len(set(d)) == 2 for d in draws)
    first = Counter(d[0] for d in draws)
    assert first[(2,)] > first[(3,)] > first[(4,)] > 0


def edges(tree: Tree, b: int) -> list[tuple[int, int]]:
    return [
        (p, t)
        for p, t in zip(tree.parent[b].tolist(), tree.tokens[b].tolist(), strict=True)
        if p >= 0
    ]


rows = st.lists(
    st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(3, 6), max_size=4).map(tuple)), max_size=6
    ),
    min_size=2,
    max_size=2,
)


@given(rows)
def test_a_trie_holds_each_path_once(paths):
    before = branching(2, torch.tensor([[1, 3, 4, 3, 5, 6, 3]] * 2))
    tree = add_branches(before, [list(row) for row in paths])
    check_shape(tree)
    assert torch.equal(tree.tokens[:, :7], before.tokens) and torch.equal(
        tree.parent[:, :7], before.parent
    )
    needed = 0
    for b, row in enumerate(paths):
        found = edges(tree, b)
        assert len(set(found)) == len(found), "a sibling twice"
        known = {
            edge: node
            for node, edge in enumerate(
                zip(tree.parent[b].tolist(), tree.tokens[b].tolist(), strict=True)
            )
        }
        used = set()
        for at, path in row:
            for token in path:
                at = known[at, token]  # each path can be walked
                used.add(at)
        assert {node for node in range(7, tree.size) if int(tree.parent[b, node]) >= 0} <= used, (
            "a node nobody asked for"
        )
        needed = max(needed, len(used))
    assert tree.size <= 7 + sum(len(path) for row in paths for _, path in row)


def grown(
    sampler: Sampler, text: list[int], drafted: list[int], limit: int = 9, **options
) -> list[list[int]]:
    """The paths that Reuse hangs below a drafted chain, as texts from the root's child down."""
    lm = tiny.target("llama")
    seqs = Sequences.of([text], limit, lm.new_cache(1, 4), sampler)
    drafter = Reuse(**options)
    drafter.start(seqs)
    chain = Tree.chain(torch.tensor([[text[-1], *drafted]]))
    tree = drafter.grow(chain, seqs, DraftLimits(seqs.room))
    leaves = set(range(1 + len(drafted), tree.size)) - set(tree.parent[0].tolist())
    return sorted(tree.tokens[0, tree.mask[0, leaf]].tolist()[1:] for leaf in leaves)


TEXT = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 4, 3, 2]


def test_what_is_hung_and_where():
    assert grown(Sampler(), TEXT, [5]) == [[5, 6, 4, 3], [5, 6, 7, 8], [5, 6, 7, 9]]
    assert grown(Sampler(), TEXT, [5], topk=1) == [[5, 6, 4, 3]]  # all occurred once: the latest
    assert grown(Sampler(), TEXT, [5], n=2) == [[5, 6]]
    assert grown(Sampler(), TEXT, [5], limit=3) == [[5, 6]]  # no room for more
    assert grown(Sampler(), TEXT, [5], limit=2) == []
    assert grown(Sampler(), TEXT, [11]) == []
    # the chain is there already
    assert grown(Sampler(), TEXT, [5, 6, 7, 8]) == [
        [5, 6, 4, 3],
        [5, 6, 7, 9],
    ]
    assert grown(Sampler(), [*TEXT, 5], [6], below=0, n=3) == [[6, 4], [6, 7]]
    assert grown(Sampler(), [5], [5]) == []


def test_the_penalty_window_is_not_offered():
    """n-grams that end in the last 5 tokens: 5 6 4 3 is one of them."""
    near = {"penalty": 1.2, "window": 5}
    assert grown(Sampler(**near), TEXT, [5]) == [[5, 6, 7, 8], [5, 6, 7, 9]]
    assert grown(Sampler(window=5), TEXT, [5]) == grown(Sampler(), TEXT, [5])
    assert grown(Sampler(penalty=1.2), TEXT, [5]) == []


@pytest.mark.parametrize("below", [0, 1])
@pytest.mark.parametrize("choice", ["count", "random"])
def test_alone_it_is_lossless(choice, below):
    for sampler in (*SAMPLERS.values(), PENALTY):
        check_lossless(lambda t: Reuse(3, 4, below, choice), "llama-loops", sampler, (60, 1, 33))
    stats = check_lossless(lambda t: Reuse(3, 4, 0, choice), "llama-loops", Sampler(), (60, 33))
    assert sum(stats.accepted) > 0.5 * stats.steps


def test_bad_options_are_one_line():
    with pytest.raises(InputError, match="2 or more"):
        Reuse(1)
