"""Token recycling: the table holds what the last logits ranked highest, and the tree is a template
filled from it.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, SEED, toy_sequences

from longdraft import stream
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, DraftLimits, Tree
from longdraft.core.verify import match
from longdraft.drafters import Recycle
from longdraft.drafters.ngram.recycle import _followers, template

# followers of a token and levels of the tree, as published
RANKS = 8
DEPTH = 6


def test_the_template_has_the_published_trees_shape():
    pairs = template(80)
    depth = [0]
    for parent, _ in pairs:
        depth.append(depth[parent] + 1)
    counts = Counter(depth[1:])
    # found by search: 8, 21, 25, 15, 8, 3
    assert [counts[d] for d in range(1, DEPTH + 1)] == [
        8,
        21,
        25,
        19,
        6,
        1,
    ]


@pytest.mark.parametrize("nodes", [1, 7, 24, 80, 300])
def test_a_template_is_a_tree_without_gaps(nodes):
    pairs = template(nodes)
    assert len(set(pairs)) == len(pairs) == nodes
    for i, (parent, rank) in enumerate(pairs, 1):
        assert 0 <= parent < i and 0 <= rank < RANKS
        assert rank == 0 or (parent, rank - 1) in pairs[: i - 1]
    assert pairs == template(nodes + 5)[:nodes]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_a_prompt_tells_what_followed_each_token(prompt):
    table = _followers(prompt, 6)
    for token in range(6):
        after = [b for a, b in pairwise(prompt) if a == token]
        want = list(dict.fromkeys(reversed(after)))[:RANKS]
        assert table[token].tolist() == want + [-1] * (RANKS - len(want))


def test_no_more_than_eight_follow():
    prompt = [t for n in range(3, 20) for t in (1, n)]
    assert _followers(prompt, 20)[1].tolist() == list(range(19, 11, -1))


class Watched(Recycle):
    """Checks its table against a plain copy after each round, and each tree against the table
    before it.
    """

    def start(self, seqs):
        super().start(seqs)
        self.rounds = 0
        self.copy = [{} for _ in range(len(seqs.length))]

    def grow(self, tree, seqs, limits):
        tree = super().grow(tree, seqs, limits)
        assert int(tree.depth.max()) <= min(DEPTH, limits.depth)
        for b in range(len(seqs.length)):
            children = Counter()
            for n in range(1, tree.size):
                parent = int(tree.parent[b, n])
                if parent == PAD:
                    continue
                entry = self.table[b, tree.tokens[b, parent]].tolist()
                children[parent, int(tree.tokens[b, n])] += 1
                assert int(tree.tokens[b, n]) in entry
            assert max(children.values(), default=1) == 1, (
                "a token was drafted twice below one node"
            )
        return tree

    def update(self, seqs, tree, verdict, captured):
        super().update(seqs, tree, verdict, captured)
        self.rounds += 1
        for b in range(len(seqs.length)):
            accepted = verdict.path[b, : verdict.count[b]].tolist()
            real = [n for n in range(tree.size) if int(tree.parent[b, n]) != PAD]
            for n in [*real, *accepted]:
                self.copy[b][int(tree.tokens[b, n])] = (
                    captured.logits[b, n].topk(RANKS).indices.tolist()
                )
            for token, best in self.copy[b].items():
                assert self.table[b, token].tolist() == best


@pytest.mark.each_value
@pytest.mark.parametrize("model", ["llama", "llama-torch", "llama-loops", "gpt-oss"])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_the_table_is_the_logits_top_eight(model, sampler):
    drafter = Watched(12)
    for _ in stream(tiny.target(model), tiny.prompts(40, 1, 13), drafter, 20, sampler, SEED):
        pass
    assert drafter.rounds > 3


def test_a_new_text_starts_from_its_own_prompt():
    drafter = Recycle()
    lm = tiny.target("llama")
    for lengths in ((30, 20), (9,)):
        for _ in stream(lm, tiny.prompts(*lengths), drafter, 2):
            pass
    prompt = tiny.prompts(9)[0]
    want = _followers(prompt, lm.vocab)
    same = (drafter.table[0] == want).all(1)
    assert drafter.table.shape == (1, lm.vocab, RANKS)
    assert 0 < int((~same).sum()) <= 25  # the nodes of the one round that drafted


def test_a_vocabulary_of_less_than_eight():
    drafter = Recycle(9)
    seqs = toy_sequences(2, 12, SAMPLERS["T=1"])
    sizes = []
    drafter.start(seqs)
    for _ in range(6):
        tree = drafter.grow(Tree.root(seqs.last), seqs, DraftLimits(seqs.room))
        logits = torch.randn(2, tree.size, 5, generator=torch.Generator().manual_seed(tree.size))
        verdict = match(tree, logits, seqs.sampler, seqs)
        seqs.commit(verdict)
        drafter.update(seqs, tree, verdict, Captures(CaptureSpec(), logits=logits))
        sizes.append(tree.size)
    assert sizes[0] == 1 and max(sizes) > 1
