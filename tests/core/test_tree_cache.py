"""Trees and the cache against their naive definitions, on random trees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import structure, tiny
from support.structure import ancestors, branching, check_keep, check_shape, check_tree_pass

from longdraft.core.cache import KVCache
from longdraft.core.tree import PAD, Tree


@st.composite
def trees(draw, rows: int = 2, most: int = 4) -> Tree:
    """A few levels of up to 4 nodes whose parents are any present nodes, of this row alone, or
    padding.
    """
    tree = Tree.root(torch.tensor(draw(st.lists(st.integers(3, 95), min_size=rows, max_size=rows))))
    for width in draw(st.lists(st.integers(1, most), max_size=most)):
        parents = []
        for b in range(rows):
            real = [n for n, p in enumerate(tree.parent[b].tolist()) if p != PAD]
            parents.append([draw(st.sampled_from([*real, PAD])) for _ in range(width)])
        tokens = [[draw(st.integers(3, 95)) for _ in range(width)] for _ in range(rows)]
        tree = tree.grow(torch.tensor(parents), torch.tensor(tokens))
    return tree


@st.composite
def accepted(draw) -> tuple[Tree, list[int]]:
    tree = draw(trees())
    real = [[n for n, p in enumerate(row) if p != PAD] for row in tree.parent.tolist()]
    return tree, [draw(st.sampled_from(nodes)) for nodes in real]


@pytest.mark.full
@given(trees(rows=3))
@settings(max_examples=100)
def test_mask_is_ancestor_or_self_and_depth_counts(tree):
    check_shape(tree)
    last = [max(n for n, p in enumerate(row) if p != PAD) for row in tree.parent.tolist()]
    assert tree.last.tolist() == last


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_chain_is_a_tree(size):
    tokens = torch.arange(3, 3 + 2 * size).view(2, size)
    grown = Tree.root(tokens[:, 0])
    for i in range(1, size):
        grown = grown.grow(torch.full((2, 1), i - 1), tokens[:, i : i + 1])
    chain = Tree.chain(tokens)
    for field in ("tokens", "parent", "depth", "mask"):
        assert torch.equal(getattr(chain, field), getattr(grown, field))


paths = st.lists(st.lists(st.integers(3, 95), max_size=3), min_size=1, max_size=4)


@given(trees(rows=1), st.data())
def test_graft_hangs_whole_branches(tree, data):
    branches = data.draw(paths)
    real = [n for n, p in enumerate(tree.parent[0].tolist()) if p != PAD]
    at = [data.draw(st.sampled_from(real)) for _ in branches]
    most = max(map(len, branches))
    table = torch.tensor([[b + [-1] * (most - len(b)) for b in branches]], dtype=torch.long).view(
        1, len(at), most
    )
    grafted = tree.add_paths(torch.tensor([at]), table)
    check_shape(grafted)
    parent = grafted.parent[0].tolist()
    tokens = grafted.tokens[0].tolist()
    assert parent[: tree.size] == tree.parent[0].tolist()
    assert sum(p != PAD for p in parent[tree.size :]) == sum(map(len, branches))
    spelled = [
        [tokens[n] for n in ancestors(parent, node)]
        for node in range(len(parent))
        if parent[node] != PAD
    ]
    for start, branch in zip(at, branches, strict=True):
        assert [tokens[n] for n in ancestors(parent, start)] + branch in spelled


subtrees = st.lists(st.tuples(st.integers(0, 12), st.integers(3, 9)), max_size=13)


@given(trees(rows=2), st.lists(subtrees, min_size=2, max_size=2), st.sampled_from([0, 1, 2, 99]))
def test_subtrees_below_the_root_are_added_whole_or_to_a_width(tree, drawn, width):
    rows = [[(min(parent, i), token) for i, (parent, token) in enumerate(row)] for row in drawn]
    grown = tree.add_below_root(rows, width)
    check_shape(grown)
    assert torch.equal(grown.tokens[:, : tree.size], tree.tokens)
    assert torch.equal(grown.parent[:, : tree.size], tree.parent)
    for b, pairs in enumerate(rows):
        spelled = {0: []}
        wanted = []
        for i, (parent, token) in enumerate(pairs, 1):
            path = [*spelled.get(parent, []), token]
            if parent in spelled and sum(len(p) == len(path) for p in wanted) < width:
                spelled[i] = path
                wanted.append(path)
        parent = grown.parent[b].tolist()
        tokens = grown.tokens[b].tolist()
        new = [n for n in range(tree.size, grown.size) if parent[n] != PAD]
        assert [[tokens[n] for n in ancestors(parent, node)][1:] for node in new] == wanted


def test_laws_stay_with_their_nodes():
    law = torch.rand(2, 1, 5)
    tree = Tree.root(torch.tensor([1, 2])).with_draft_probs(0, law)
    tree = tree.grow(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))
    assert (
        torch.equal(tree.draft_probs[:, :1], law)
        and tree.draft_probs.shape == (2, 4, 5)
        and float(tree.draft_probs[:, 1:].sum()) == 0
    )
    second = torch.rand(2, 3, 5)
    tree = tree.with_draft_probs(1, second)
    assert torch.equal(tree.draft_probs, torch.cat([law, second], 1))


@given(accepted())
@settings(max_examples=25)
def test_keep_leaves_what_plain_decoding_writes(case):
    check_keep(*case)


@pytest.mark.parametrize("model", tiny.MAIN)
def test_keep_on_every_model(model):
    check_keep(branching(3), [6, 5, 0], model)


@pytest.mark.full
@given(
    st.data(),
    st.sampled_from(["llama", "gpt-oss", "mistral-window"]),
    st.sampled_from([(9, 5), (1, 30), (24, 25)]),
)
@settings(max_examples=25)
def test_rounds_of_random_trees_and_acceptance_leave_what_plain_decoding_writes(
    data, model, lengths
):
    """Trees of the text so far, of which any branch is kept to any depth, none of it included."""
    rounds = []
    for tree in data.draw(st.lists(trees(), min_size=1, max_size=4)):
        nodes = [
            data.draw(st.sampled_from([n for n, p in enumerate(r) if p != PAD]))
            for r in tree.parent.tolist()
        ]
        paths = [
            ancestors(parent, node)
            for parent, node in zip(tree.parent.tolist(), nodes, strict=True)
        ]
        rounds.append((tree, paths, [data.draw(st.integers(0, len(path))) for path in paths]))
    structure.check_rounds(rounds, lengths, model)


@pytest.mark.full
@given(trees())
@settings(max_examples=15)
def test_a_pass_over_any_tree_is_one_stock_pass_per_path(tree):
    check_tree_pass("gpt-oss", tree, (30, 8))


def test_rollback():
    structure.check_rollback()


def test_a_drafts_own_slots_are_overwritten_by_verification():
    """Scratch of one pass leaves no trace in the next one, also where the next tree is smaller."""
    lm = tiny.target("llama")
    prompt = tiny.prompts(20)[0]
    results = []
    for draft_first in (False, True):
        cache = lm.new_cache(1, 40)
        lm.prefill(prompt, cache)
        if draft_first:
            for _, k, v in ((i, *cache.read(i, 0)) for i in cache.layers):
                k[:, 20:] = float("nan")
                v[:, 20:] = float("nan")
            lm(branching(1), cache)
        results.append(lm(Tree.chain(torch.tensor([[4, 9, 16]])), cache))
    assert torch.equal(*results)


def test_the_cache_grows_and_keeps_what_it_holds():
    """From a buffer with no slack at all: the tree's nodes force it to grow."""
    lm = tiny.target("llama")
    prompts = tiny.prompts(12, 9)
    results = []
    for slots in (1, 64):
        cache = lm.new_cache(2, slots)
        for b, prompt in enumerate(prompts):
            lm.prefill(prompt, cache.row(b), 5)
        results.append(lm(branching(2), cache))
    assert torch.equal(*results)


def test_rows_share_memory_and_nothing_else():
    cache = KVCache(2, 4)
    k = torch.arange(2 * 1 * 3 * 2.0).view(2, 1, 3, 2)
    cache.write(0, k, -k, [0, 1])
    assert torch.equal(cache.read(0, 0)[0][:, :3], k[0])
    assert torch.equal(cache.read(0, 1)[1][:, 1:], -k[1])
    row = cache.row(1)
    row.length += 3
    assert cache.length.tolist() == [0, 3]
    assert torch.equal(row.read(0, 0)[0], cache.read(0, 1)[0])
    assert cache.nbytes(10) == 10 * 2 * 2 * 4  # keys and values, one head of 2 floats


def test_keys_and_values_may_differ_in_width():
    cache = KVCache(1, 8)
    cache.write(3, torch.rand(1, 2, 4, 6), torch.rand(1, 2, 4, 5), [0])
    k, v = cache.read(3, 0)
    assert (k.shape, v.shape, cache.layers) == ((2, 8, 6), (2, 8, 5), [3])
