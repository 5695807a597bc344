"""Quest's pages: bounds that bound, statistics that keep up with the text, attention over the
chosen pages.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, check_full_acceptance

from longdraft.core.cache import KVCache
from longdraft.core.tree import Tree
from longdraft.drafters import SelfDrafter
from longdraft.ops import StoredRow, reference
from longdraft.views import Quest
from longdraft.views.quest import Pages

K = 2
G = 3
D = 8
PAGE = 4


def keys(slots: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(K, slots, D, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 1000))
def test_no_key_of_a_page_exceeds_its_bound(count, nodes, seed):
    k = keys(count * PAGE + 3, seed)
    q = torch.randn(K * G, nodes, D, generator=torch.Generator().manual_seed(seed + 1))
    bounds = Pages(PAGE).bounds(0, 0, StoredRow(k, k), count, q)
    products = q.view(K, G * nodes, D) @ k[:, : count * PAGE].mT
    assert bool((products.unflatten(2, (count, PAGE)).amax((1, 3)) <= bounds + 1e-5).all())


def test_a_page_of_equal_keys_has_an_exact_bound():
    k = keys(3).repeat_interleave(PAGE, 1)
    q = torch.randn(K * G, 1, D)
    want = (q.view(K, G, D) @ k[:, ::PAGE].mT).amax(1)
    assert torch.allclose(Pages(PAGE).bounds(0, 0, StoredRow(k, k), 3, q), want, atol=1e-6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 1000))
def test_statistics_keep_up_with_the_text(steps, seed):
    """Page by page or all at once; also where a count comes back to an earlier one."""
    k = keys(32 * PAGE, seed)
    row = StoredRow(k, k)
    q = torch.randn(K * G, 1, D)
    grown = Pages(PAGE)
    count = 1
    for step in steps:
        count += step
        for n in (count, max(1, count - 1)):
            assert torch.equal(grown.bounds(1, 0, row, n, q), Pages(PAGE).bounds(1, 0, row, n, q))
    assert grown.known[1, 0][0].shape == (K, count, D)


def cache_of(lengths: list[int], layers: int = 2) -> KVCache:
    cache = KVCache(len(lengths), max(lengths) + 8)
    for layer in range(layers):
        g = torch.Generator().manual_seed(layer)
        k = torch.randn(len(lengths), K, max(lengths) + 8, D, generator=g)
        cache.write(layer, k, -k, [0] * len(lengths))
    cache.length += torch.tensor(lengths)
    return cache


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("length", [63, 64, 66])
def test_attention_reads_the_best_pages_and_the_open_one(length, nodes):
    cache = cache_of([10, length])
    b = 1
    layer = 1
    policy = Quest(keep_ratio=0.01, min_budget=5 * PAGE, page=PAGE, dense=1)
    view, (k, v) = policy.view(cache), cache.read(layer, b)
    q = torch.randn(K * G, nodes, D)
    end = length + nodes
    visible = torch.ones(nodes, nodes, dtype=torch.bool).tril()
    segments = view.segments(layer, b, StoredRow(k, v), end, visible, q)
    count = length // PAGE
    best = Pages(PAGE).bounds(layer, b, StoredRow(k, v), count, q).topk(4).indices
    seen = torch.zeros(K, end, dtype=torch.bool)
    seen[:, count * PAGE :] = True
    for head in range(K):
        for page in best[head].tolist():
            seen[head, page * PAGE : (page + 1) * PAGE] = True
    logits = (q.view(K, G * nodes, D) @ k[:, :end].mT).view(K, G, nodes, end)
    causal = torch.cat([torch.ones(nodes, length, dtype=torch.bool), visible], 1)
    logits = logits.masked_fill(~(seen[:, None, None] & causal), float("-inf"))
    want = (logits.softmax(-1).flatten(1, 2) @ v[:, :end]).view(K * G, nodes, D).transpose(0, 1)
    assert torch.allclose(reference.attend(q, segments, 1.0).out, want, atol=1e-5)
    assert [n * PAGE for n in view.counts] == [8, count * PAGE]


def test_each_step_chooses_anew():
    cache = cache_of([64])
    view, (k, v) = Quest(0.01, 5 * PAGE, PAGE, dense=0).view(cache), cache.read(0, 0)
    found = [
        view.segments(0, 0, StoredRow(k, v), 65, None, q)[0].k for q in torch.randn(2, K * G, 1, D)
    ]
    assert found[0].shape == found[1].shape and not torch.equal(
        found[0].sort(1).values, found[1].sort(1).values
    )


def test_small_budgets_have_three_pages():
    """Like the published code: the open page, or the last one, among them."""
    view = Quest(0.01, 1, PAGE).view(cache_of([64, 7, 200]))
    assert (view.counts, view.selected) == ([16, 1, 50], [2, 2, 2])


def test_the_first_layers_see_everything():
    cache = cache_of([64], layers=3)
    view = Quest(0.01, 5 * PAGE, PAGE).view(cache)
    q = torch.randn(K * G, 1, D)
    sizes = [
        sum(s.k.shape[1] for s in view.segments(layer, 0, cache.stored_row(layer, 0), 65, None, q))
        for layer in range(3)
    ]
    assert sizes == [65, 65, 4 * PAGE + 1]


@pytest.mark.full
@pytest.mark.parametrize(
    "model", ["llama", "llama-torch", "gpt-oss", "llama-mqa", "gemma2-softcap"]
)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_budget_of_the_context_is_full_attention(model, sampler):
    check_full_acceptance(
        lambda t: SelfDrafter(t, Quest(0.07, 999, 4, dense=0), [1] * 5), 5, model, sampler, (70, 31)
    )


def test_a_pass_under_all_pages_is_a_pass_without_a_view():
    """Pages gathered one by one, in another order: the same keys."""
    lm = tiny.target("llama-torch")
    prompt = tiny.prompts(64)[0]
    cache = lm.new_cache(1, 80)
    lm.prefill(prompt, cache)
    tree = Tree.chain(torch.tensor([[5, 6, 7]]))
    policy = Quest(0.07, 60, PAGE, dense=0)
    view = policy.view(cache)
    view.selected = [15]  # of 16: enough to go through the pages
    sparse = lm(tree, cache, view=view)
    full = lm(tree, cache)
    view.selected = [16]
    assert not torch.allclose(sparse, full) and torch.allclose(
        lm(tree, cache, view=view), full, atol=1e-5
    )


def test_pages_of_one_text_are_forgotten_at_the_next():
    """Also where the next one uses the same cache."""
    lm = tiny.target("llama")
    policy = Quest(0.07, 16, PAGE, dense=0)
    seen = []
    for seed in (0, 1):
        cache = lm.new_cache(1, 80)
        prompt = tiny.prompts(64, seed=seed)[0]
        lm.prefill(prompt, cache)
        policy.start(lm, torch.tensor([prompt]), cache)
        lm(Tree.root(torch.tensor([5])), cache, view=policy.view(cache))
        seen.append(policy._pages.known[0, 0][1])
    fresh = cache.read(0, 0)[0][:, :64].unflatten(1, (16, PAGE)).amax(2)
    assert torch.equal(seen[1], fresh) and not torch.equal(seen[0], fresh)
