"""Trees from one distribution per depth: the best paths are those of a search through all paths."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, SEED, check_best_path, check_lossless
from support.structure import ancestors, check_shape

from longdraft import InputError, Sampler, build, generate, reject
from longdraft.core.sequences import Sequences
from longdraft.core.tree import PAD, UNBOUNDED, DraftLimits, Tree
from longdraft.drafters import random_glide
from longdraft.drafters.heads.drafter import random_medusa
from longdraft.drafters.marginals import BestPaths, best_paths

# many sums are equal, none is rounded
VALUES = st.sampled_from([0.0, -0.25, -0.25, -0.5, -1.0, -1.5, -math.inf])


def all_paths(values: list[list[float]]) -> dict[tuple[int, ...], float]:
    """Every possible path as its ranks, with its value."""
    paths = (
        p for d in range(len(values)) for p in product(*(range(len(v)) for v in values[: d + 1]))
    )
    found = {path: sum(values[d][rank] for d, rank in enumerate(path)) for path in paths}
    return {path: value for path, value in found.items() if value > -math.inf}


@given(
    st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 12),
    st.data(),
)
def test_no_other_paths_are_better(values, nodes, data):
    values = [sorted(v, reverse=True) for v in values]
    width = data.draw(st.sampled_from([1, 2, 3, UNBOUNDED]))
    found = best_paths(values, nodes, width)
    paths = [()]
    for parent, d, rank in found:
        assert parent < len(paths) and len(paths[parent]) == d
        paths.append((*paths[parent], rank))
    everything = all_paths(values)
    taken = paths[1:]
    assert len(set(taken)) == len(taken)
    # of each depth the best: with a width, a path below one that is left out is never among them
    allowed = []
    for d in range(len(values)):
        allowed += sorted((v for p, v in everything.items() if len(p) == d + 1), reverse=True)[
            :width
        ]
    assert [everything[p] for p in taken] == sorted(allowed, reverse=True)[:nodes]


def sequences(sampler: Sampler, lengths=(20, 7)) -> Sequences:
    lm = tiny.target("llama")
    return Sequences.of(tiny.prompts(*lengths), 20, lm.new_cache(len(lengths), 4), sampler, SEED)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_tree_is_that_of_a_slow_search(sampler):
    """Scores node by node along the best path: penalties count it, the noise is that of each
    position.
    """
    seqs = sequences(sampler)
    logits = torch.randn(2, 3, 96, generator=torch.Generator().manual_seed(3)) * 3
    tree = BestPaths(9).add(Tree.root(seqs.last), logits, seqs, DraftLimits())
    check_shape(tree)
    for b in range(2):
        chain = seqs.last
        values = []
        for d in range(3):
            path = Tree.chain(chain.view(2, -1))
            scores = sampler.scores(logits[:, d, None].expand(-1, d + 1, -1), path, seqs)[:, -1]
            chain = torch.cat([chain.view(2, -1), scores.argmax(-1)[:, None]], 1)
            values.append(scores[b].log_softmax(-1))
        tops = [v.topk(9).indices.tolist() for v in values]
        every = [p for d in range(3) for p in product(*tops[: d + 1])]
        every.sort(key=lambda p: -sum(float(values[d][t]) for d, t in enumerate(p)))
        parents = tree.parent[b].tolist()
        found = {
            tuple(tree.tokens[b, ancestors(parents, n)[1:]].tolist()) for n in range(1, tree.size)
        }
        assert tree.size == 10 and found == set(every[:9])


@pytest.mark.parametrize("sampler", [SAMPLERS["greedy"], SAMPLERS["T=1"]], ids=["greedy", "T=1"])
def test_scores_of_all_depths_at_once_are_those_one_by_one(sampler, monkeypatch):
    seqs = sequences(sampler)
    logits = torch.randn(2, 4, 96, generator=torch.Generator().manual_seed(3))
    want = BestPaths(20).add(Tree.root(seqs.last), logits, seqs, DraftLimits())
    monkeypatch.setattr(Sampler, "bare", False)
    found = BestPaths(20).add(Tree.root(seqs.last), logits, seqs, DraftLimits())
    assert torch.equal(found.tokens, want.tokens) and torch.equal(found.parent, want.parent)


def test_beside_a_chain_are_the_paths_of_its_distributions():
    """A drafter whose distribution depends on the whole path is asked along its own best path
    alone.
    """
    seqs = sequences(SAMPLERS["T=1 min-p penalty"])
    asked = []

    def step(tree, start):
        asked.append((tree.size, start))
        noise = [torch.Generator().manual_seed(int(path.sum())) for path in tree.tokens]
        return torch.stack([torch.randn(1, 96, generator=g) * 3 for g in noise])

    tree = BestPaths(12).add_beside(step, 4, Tree.root(seqs.last), seqs, DraftLimits(depth=3))
    assert asked == [(1, 0), (2, 1), (3, 2)]
    chain = BestPaths(12).add_beside(step, 3, Tree.root(seqs.last), seqs, DraftLimits(width=1))
    logits = torch.cat([step(Tree.chain(chain.tokens[:, : d + 1]), d) for d in range(3)], 1)
    want = BestPaths(12).add(Tree.root(seqs.last), logits, seqs, DraftLimits())
    assert torch.equal(tree.tokens, want.tokens) and torch.equal(tree.parent, want.parent)
    assert (
        BestPaths(12).add_beside(step, 3, tree.root(seqs.last), seqs, DraftLimits(depth=0)).size
        == 1
    )


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_where_the_distributions_are_equal_everything_is_accepted(sampler):
    check_best_path(sampler)


def test_a_tree_is_planted_as_it_is_grown():
    """Rows of unequal sizes, one of them empty: shapes, order and padding."""
    rows = [[(0, 5), (1, 6), (0, 7), (2, 8), (2, 9)], [], [(0, 3), (0, 4)]]
    tree = Tree.root(torch.tensor([1, 2, 3])).plant(rows)
    check_shape(tree)
    assert tree.tokens[:, 0].tolist() == [1, 2, 3] and tree.size == 6
    for b, row in enumerate(rows):
        alone = Tree.root(tree.tokens[b : b + 1, 0])
        for parent, token in row:
            alone = alone.grow(torch.tensor([[parent]]), torch.tensor([[token]]))
        for mine, want in (
            (tree.tokens, alone.tokens),
            (tree.parent, alone.parent),
            (tree.depth, alone.depth),
        ):
            assert mine[b, : alone.size].tolist() == want[0].tolist()
        assert tree.parent[b, alone.size :].eq(PAD).all()
    assert Tree.root(torch.tensor([4, 5])).plant([[], []]).size == 1


def test_limits():
    seqs = sequences(Sampler())
    logits = torch.randn(2, 4, 96)
    root = Tree.root(sequences(Sampler()).last)
    chain = BestPaths(9).add(root, logits, seqs, DraftLimits(width=1))
    assert chain.size == 5 and chain.tokens[:, 1:].tolist() == logits.argmax(-1).tolist()
    assert int(BestPaths(9).add(root, logits, seqs, DraftLimits(depth=2)).depth.max()) <= 2
    assert BestPaths(9).add(root, logits, seqs, DraftLimits(width=2)).widest <= 2
    for none in (DraftLimits(depth=0), DraftLimits(width=0)):
        assert BestPaths(9).add(root, logits, seqs, none) is root
    with pytest.raises(ValueError, match="put it first"):
        BestPaths(9).add(chain, logits, seqs, DraftLimits())


def test_medusa_and_longspec_take_nodes():
    lm = tiny.target("llama")
    assert build("medusa", lm, random_medusa(lm, 0), nodes=2).max_depth == 2
    check_lossless(lambda t: build("medusa", t, random_medusa(t, 0), nodes=60), lengths=(31, 12))
    glide = random_glide(lm)
    assert build("longspec", lm, glide, nodes=9).max_depth == 5
    assert build("longspec", lm, glide, nodes=9, gamma=3).max_depth == 3
    with pytest.raises(InputError, match="use verify=match"):
        generate(lm, tiny.prompts(9), build("longspec", lm, glide, nodes=9), verify=reject)
    with pytest.raises(InputError, match="option nodes is -1"):
        build("medusa", lm, random_medusa(lm, 0), nodes=-1)
