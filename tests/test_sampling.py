"""The sampler: one law per node, from its own path alone, as Transformers' processors define it."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from checks import toy_sequences
from hypothesis import given
from hypothesis import strategies as st
from structure import ancestors, branching
from test_tree_cache import trees
from transformers import GenerationConfig
from transformers.generation import logits_process as processors

from longdraft import InputError, Sampler
from longdraft.cache import KVCache
from longdraft.sequences import Sequences
from longdraft.tree import PAD, Tree


def sequences(prompts: list[list[int]], sampler: Sampler) -> Sequences:
    return Sequences.of(prompts, 8, KVCache(len(prompts), 1), sampler, seed=5)


@given(trees(rows=2), st.lists(st.integers(0, 95), min_size=1, max_size=9), st.integers(1, 8), st.data())
def test_the_penalty_counts_each_nodes_own_last_tokens(tree, prompt, window, data):
    """Against the definition: spell the node's path out, look at its last `window` tokens."""
    prompts = [[*prompt, int(tree.tokens[0, 0])], [*prompt[:1], int(tree.tokens[1, 0])]]
    sampler = Sampler(penalty=1.5, window=window)
    logits = torch.randn(2, tree.size, 96, generator=torch.Generator().manual_seed(0))
    start = data.draw(st.integers(0, tree.size - 1))
    found = sampler.law(logits[:, start:], tree, sequences(prompts, sampler), start)
    for b in range(2):
        parent = tree.parent[b].tolist()
        for node in range(start, tree.size):
            if parent[node] == PAD:
                continue
            said = prompts[b] + tree.tokens[b, ancestors(parent, node)[1:]].tolist()
            want = logits[b, node].clone()
            for token in set(said[-window:]):
                want[token] = want[token] / 1.5 if want[token] > 0 else want[token] * 1.5
            assert torch.equal(found[b, node - start], want)


LAWS = {
    "temperature": Sampler(temperature=0.6),
    "top-k": Sampler(temperature=1.0, top_k=5),
    "top-p": Sampler(temperature=0.8, top_p=0.6),
    "min-p": Sampler(temperature=1.2, min_p=0.1),
    "eta": Sampler(temperature=1.0, eta=0.02),
    "all": Sampler(temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, eta=0.001),
}


@pytest.mark.parametrize("sampler", LAWS.values(), ids=LAWS)
def test_the_law_is_transformers(sampler):
    """The processors that `generate` would build, in the order that it would apply them, where it has them all."""
    logits = torch.randn(3, 7, 96, generator=torch.Generator().manual_seed(1)) * 3
    found = sampler.law(logits, branching(3), sequences([[3], [4, 5], [6]], sampler))
    flat, ids = logits.view(21, 96), torch.zeros(21, 1, dtype=torch.long)
    steps = [processors.TemperatureLogitsWarper(sampler.temperature)]
    steps += [processors.MinPLogitsWarper(sampler.min_p)] if sampler.min_p else []
    steps += [processors.EtaLogitsWarper(sampler.eta)] if sampler.eta else []
    steps += [processors.TopKLogitsWarper(sampler.top_k)] if sampler.top_k else []
    steps += [processors.TopPLogitsWarper(sampler.top_p)] if sampler.top_p < 1 else []
    for step in steps:
        flat = step(ids, flat)
    torch.testing.assert_close(found.view(21, 96), flat)
    assert GenerationConfig(top_p=sampler.top_p, top_k=sampler.top_k, min_p=sampler.min_p)


def test_greedy_ignores_everything_but_the_penalty():
    logits = torch.randn(1, 7, 96, generator=torch.Generator().manual_seed(1))
    seqs = sequences([[3]], Sampler())
    for sampler in (Sampler(), Sampler(top_k=2, top_p=0.1, min_p=0.9)):
        assert torch.equal(sampler.scores(logits, branching(1), seqs), logits)


def test_a_draw_depends_on_position_and_path_alone():
    """The same prefix at the same position draws the same token, as a root or deep in a tree."""
    sampler, logits = Sampler(temperature=1.0), torch.randn(96, generator=torch.Generator().manual_seed(1))
    prompt = [4, 9, 30]
    tree = Tree.chain(torch.tensor([[30, 8, 7]]))
    deep = sampler.scores(logits.expand(1, 3, 96), tree, sequences([prompt], sampler))
    for i in range(3):
        text = prompt + [8, 7][:i]
        root = sampler.scores(logits.expand(1, 1, 96), Tree.root(torch.tensor([text[-1]])), sequences([text], sampler))
        assert torch.equal(root[0, 0], deep[0, i])


def test_scores_of_later_nodes_are_those_of_the_whole_tree():
    sampler = Sampler(temperature=0.7, top_p=0.9, penalty=1.3, window=4)
    tree, seqs = branching(2), sequences([[5, 6, 7], [8]], sampler)
    logits = torch.randn(2, 7, 96, generator=torch.Generator().manual_seed(2))
    whole = sampler.scores(logits, tree, seqs)
    for start in range(7):
        assert torch.equal(sampler.scores(logits[:, start:], tree, seqs, start), whole[:, start:])


def test_another_seed_draws_otherwise():
    sampler, seqs = Sampler(temperature=1.0), toy_sequences(64, 4, Sampler(temperature=1.0))
    tree, logits = Tree.root(seqs.last), torch.zeros(64, 1, 96)
    own = sampler.scores(logits, tree, seqs)
    assert torch.equal(own, sampler.scores(logits, tree, seqs, seed=seqs.seed))
    other = sampler.scores(logits, tree, seqs, seed=seqs.seed + 1)
    assert torch.equal(own[1:], other[:-1])  # seed b+1 is row b+1's own
    assert int((own.argmax(-1) == other.argmax(-1)).sum()) < 10


BAD = {
    "temperature": [-0.1, 1e9, float("nan")],
    "top_k": [-1],
    "top_p": [0, -0.5, 1.5],
    "min_p": [-0.1, 1.1],
    "eta": [-0.1, 2],
    "penalty": [0, -1, float("inf")],
    "window": [0, -3],
}


@pytest.mark.parametrize("name", [f.name for f in fields(Sampler)])
def test_values_out_of_range_are_refused_in_one_line(name):
    for value in BAD[name]:
        with pytest.raises(InputError, match=rf"{name.replace('_', '-')} is .*: give a value ") as error:
            Sampler(**{name: value})
        assert "\n" not in str(error.value)
