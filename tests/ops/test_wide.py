"""Passes over more nodes than the native step takes at once: the same bits, scores and states as in
one go.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS

from longdraft import Sampler, build, generate
from longdraft.backends.partition import in_parts
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters import Reuse, SelfDrafter, Sequential
from longdraft.models.lm import LM
from longdraft.views import Guided

HALF = torch.bfloat16


def random_tree(rows: int, nodes: int, seed: int) -> Tree:
    """Rows of unequal shape; the last nodes of the second row are padding."""
    g = torch.Generator().manual_seed(seed)
    tree = Tree.root(torch.randint(3, 96, (rows,), generator=g))
    for _ in range(nodes - 1):
        parent = torch.stack([torch.randint(0, tree.size, (1,), generator=g) for _ in range(rows)])
        parent = parent.where((tree.size < nodes - 9) | (torch.arange(rows)[:, None] != 1), -2)
        parent = parent.where(tree.parent.gather(1, parent.clamp(min=0)) != -2, -2)
        tree = tree.grow(parent, torch.randint(3, 96, (rows, 1), generator=g))
    return tree


@pytest.mark.parametrize("rows", [None, "first", "last", "ends", "all", "mean"])
@torch.inference_mode()
def test_in_parts_leaves_behind_what_one_pass_does(rows):
    lm = tiny.target("llama")
    prompts = tiny.prompts(50, 33)
    tree = random_tree(2, 40, 3)

    def run(step) -> tuple[torch.Tensor, Captures]:
        cache = lm.new_cache(2, 256)
        captured = Captures(CaptureSpec(rows=rows, of="logits", hidden=(1, 3)))
        for b, p in enumerate(prompts):
            lm.prefill(p, cache.row(b))
        return step(tree, cache, 0, None, captured), captured

    want, captured = run(lm.backend.forward)
    found, parts = run(partial(in_parts, SimpleNamespace(forward=lm.backend.forward, max_nodes=7)))
    real = tree.parent != -2
    assert torch.equal(found[real], want[real])
    for n, state in captured.states.items():
        assert torch.equal(parts.states[n][real], state[real])
    assert parts.scores.keys() == captured.scores.keys()
    for layer, scores in captured.scores.items():
        mine = parts.scores[layer]
        if rows == "all":
            mine = mine[real]
            scores = scores[real]
        if rows == "mean":  # padding counts as the last node in one pass and not at all in parts
            mine = mine[:1]
            scores = scores[:1]
        torch.testing.assert_close(mine, scores, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("count", [126, 127, 128, 140])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_lookup_across_the_bound_is_plain_decoding_in_bfloat16(count, sampler):
    """Texts that repeat themselves, so that long copies are accepted; 128 drafts make a pass of 129
    nodes.
    """
    lm = LM(tiny.stock("llama", dtype=HALF))
    prompts = [(p * 4)[:150] for p in tiny.prompts(40, 37, 45)]
    plain = generate(lm, prompts, max_new_tokens=60, sampler=sampler, seed=5)
    drafter = build("lookup", lm, n=1, count=count)
    assert generate(lm, prompts, drafter, max_new_tokens=60, sampler=sampler, seed=5) == plain


def test_a_wide_pass_is_bit_for_bit_a_narrow_one():
    """The same chain of 200 nodes in one call of the model and node by node, in bfloat16."""
    lm = LM(tiny.stock("wide", dtype=HALF))
    text = torch.tensor(tiny.prompts(200))
    with torch.inference_mode():
        whole = lm(Tree.chain(text), lm.new_cache(1, 256))
        cache = lm.new_cache(1, 256)
        steps = []
        for token in text[0]:
            steps.append(lm(Tree.root(token[None]), cache))
            cache.length += 1
    assert torch.equal(whole, torch.cat(steps, 1))


def test_by_torch_a_wide_pass_is_not():
    """What the test above guards against: without the split the pass leaves the native step."""
    lm = LM(tiny.stock("wide", dtype=HALF))
    text = torch.tensor(tiny.prompts(200))
    with torch.inference_mode():
        whole = lm(Tree.chain(text), lm.new_cache(1, 256))
        lm.backend = lm.eager
        assert not torch.equal(whole, lm(Tree.chain(text), lm.new_cache(1, 256)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_guided_tree_wider_than_the_bound(temperature):
    """Scores of all parts guide the next draft."""
    lm = LM(tiny.stock("llama", dtype=HALF))
    lm.backend.max_nodes = 16
    prompts = tiny.prompts(70, 31, 90)
    sampler = Sampler(temperature=temperature)
    plain = generate(lm, prompts, max_new_tokens=40, sampler=sampler)
    drafter = Sequential(SelfDrafter(lm, Guided(0.07, 16), [1, 1, 1]), Reuse(4, 12))
    assert generate(lm, prompts, drafter, max_new_tokens=40, sampler=sampler) == plain
