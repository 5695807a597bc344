"""Views: which slots each policy shows, and that a pass under a view sees these and no others."""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.structure import check_sink_window_pass, check_view, check_view_pass

from longdraft import Stats, generate
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import Tree
from longdraft.drafters import SelfDrafter
from longdraft.ops import StoredRow
from longdraft.views import Full, Guided, Policy, RandomSlots, SinkWindow, View
from longdraft.views.base import budget_of

LENGTHS = [400, 37, 16, 9, 1, 0]


def cache_of(lengths: list[int]) -> KVCache:
    cache = KVCache(len(lengths), 8)
    cache.length += torch.tensor(lengths)
    return cache


def scored(lengths: list[int], layers: tuple[int, ...] = (0, 2), seed: int = 0) -> Captures:
    """Scores of slots 0..root, the root being slot `length`, as a verify pass leaves them."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(len(layers), len(lengths), 2, 1, max(lengths) + 1, generator=g)
    for b, n in enumerate(lengths):
        table[:, b, ..., n + 1 :] = float("-inf")
    covered = torch.tensor(lengths) + 1
    return Captures(
        CaptureSpec("ends"), scores=dict(zip(layers, table, strict=True)), covered=covered
    )


POLICIES = {
    "sink and window": SinkWindow(4, 0.07, 16),
    "no sink": SinkWindow(0, 0.07, 16),
    "sink above the budget": SinkWindow(99, 0.07, 16),
    "random": RandomSlots(0.07, 16),
    "recents": SinkWindow(0, 0.07, 16),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_shows_what_its_budget_allows(policy):
    cache = cache_of(LENGTHS)
    budget = [budget_of(n, 0.07, 16) for n in LENGTHS]
    check_view(policy.view(cache), cache, budget)
    for b, n in enumerate(LENGTHS):
        indices = policy.view(cache).indices[:, b]
        assert int((indices >= 0).sum()) + n - int(policy.view(cache).tail_start[b]) == budget[b]


def test_budget():
    assert [budget_of(n, 0.07, 16) for n in (0, 10, 100, 229, 1000)] == [0, 10, 16, 17, 70]
    assert [budget_of(n, 1.0, 1) for n in (0, 1, 77)] == [0, 1, 77]


def test_sink_and_window():
    view = SinkWindow(4, 0.07, 16).view(cache_of([400, 9]))
    assert view.indices[0].tolist() == [[0, 1, 2, 3], [-1] * 4]
    assert view.tail_start.tolist() == [400 - 28 + 4, 0]


def test_random_picks_repeat_and_vary():
    policy = RandomSlots(0.07, 16, seed=3)
    views = []
    for lengths in ([400, 300], [300, 400], [401, 300]):
        views.append(policy.view(cache_of(lengths)).indices[0])
    rows = [set(v[b].tolist()) - {-1} for v in views for b in (0, 1)]
    # one context length, one choice, whatever the row
    assert rows[0] == rows[3] and rows[1] == rows[2]
    assert rows[0] != rows[4]
    assert rows[0] != set(
        RandomSlots(0.07, 16, seed=4).view(cache_of([400, 300])).indices[0, 0].tolist()
    )


def test_guided_takes_the_best_scores_and_all_that_follows():
    lengths = [400, 37, 20, 12]
    captured = scored([400, 37, 20, 12])
    policy = Guided(0.07, 16, reach=0)
    # after the commit: row 2 was done and committed nothing, its root included
    cache = cache_of([403, 38, 20, 13])
    policy.update(cache, captured)
    view = policy.view(cache)
    budgets = [budget_of(n, 0.07, 16) for n in (401, 38, 20, 13)]
    check_view(view, cache, budgets)
    # 13 slots fit the budget: everything is seen
    assert view.tail_start.tolist() == [
        401,
        38,
        20,
        0,
    ]
    for layer, place in view.layers.items():
        for b in range(3):
            scores = captured.scores[layer][b].mean((0, 1))[
                : min(lengths[b] + 1, int(cache.length[b]))
            ]
            best = set(scores.topk(budgets[b]).indices.tolist())
            assert set(view.indices[place, b].tolist()) - {-1} == best
    assert (view.indices[:, 3] == -1).all()


def test_guided_reads_on_from_a_high_score():
    """With a reach, what follows the one place that scores is taken before all else; without,
    nothing follows it.
    """
    scores = torch.full((1, 1, 1, 400), 1e-6).index_fill_(3, torch.tensor([100]), 1.0)
    for reach, wanted in ((8, set(range(100, 109))), (0, {100})):
        policy = Guided(0.04, 16, reach=reach)
        policy.update(
            cache_of([400]),
            Captures(CaptureSpec(rows="mean"), scores={0: scores}, covered=torch.tensor([400])),
        )
        indices = set(policy.view(cache_of([400])).indices[0, 0].tolist())
        assert indices & set(range(90, 130)) == wanted


def test_guided_follows_the_latest_scores_and_needs_some():
    policy = Guided(0.07, 16)
    cache = cache_of([100])
    assert policy.view(cache) is None
    policy.update(cache, Captures())  # a model of windows alone scores nothing
    assert policy.view(cache) is None
    seen = []
    for seed in (0, 1):
        policy.update(cache, scored([99], seed=seed))
        seen.append(policy.view(cache).indices.sort(-1).values.tolist())
    assert seen[0] != seen[1]


def test_guided_chooses_only_what_is_read_and_from_the_latest_scores(monkeypatch):
    """A row that left is not chosen for; a restart forgets scores too."""
    chosen = []
    choose = Guided._choose
    monkeypatch.setattr(Guided, "_choose", lambda *a: chosen.append(a[2]) or choose(*a))
    policy = Guided(0.07, 16)
    policy.update(cache_of([100, 300]), scored([99, 299], seed=0))
    policy.update(cache_of([200, 400]), scored([199, 399], seed=1))
    assert chosen == [] and policy.captures().rows is not None
    view = policy.view(cache_of([203, 404]))
    assert policy.view(cache_of([203, 404])) is view
    assert chosen == [[200, 400]] and view.tail_start.tolist() == [200, 400]
    policy.update(cache_of([210, 410]), scored([209, 409], seed=2))
    policy.leave(None, None, cache_of([410]), 0)
    assert policy.view(cache_of([410])).tail_start.tolist() == [410]
    policy.update(cache_of([420]), scored([419], seed=3))
    policy.start(None, torch.zeros(1, 420, dtype=torch.long), cache_of([420]))
    assert policy.view(cache_of([420])) is None


def test_guided_waits_for_a_kept_view_before_it_asks_for_scores_again():
    policy = Guided(0.07, 16)
    policy.stay(3)
    policy.update(cache_of([100]), scored([99], seed=0))
    assert policy.captures().rows is None  # chosen or not, the view stays
    policy.view(cache_of([100]))
    policy.update(cache_of([101]), Captures())
    policy.update(cache_of([102]), Captures())
    assert policy.captures().rows is not None


def test_full_shows_everything():
    assert Full().view(cache_of([9])) is None


@pytest.mark.parametrize("model", ["llama", "llama-torch", "qwen3-moe"])
def test_a_pass_sees_the_view_and_nothing_else(model):
    for indices, tail_start in (
        ([3, 17, 8], 25),
        ([], 11),
        ([29, 0], 30),
        ([], 0),
        ([5, -1, -1], 28),
    ):
        view = View(torch.tensor(indices, dtype=torch.long)[None, None], torch.tensor([tail_start]))
        check_view_pass(view, [p for p in indices if p >= 0] + list(range(tail_start, 30)), model)


def test_a_sink_and_a_window_are_seen_once():
    check_sink_window_pass()


@torch.inference_mode()
@pytest.mark.parametrize("model", ["llama", "llama-torch", "gpt-oss"])
def test_each_layer_and_row_sees_its_own_picks(model):
    """Per layer and row: equal to a run alone under that row's picks; layers with a window take no
    view.
    """
    lm = tiny.target(model)
    prompts = tiny.prompts(40, 30)
    dense = [i for i in range(lm.config.num_hidden_layers) if i not in lm.windows]
    g = torch.Generator().manual_seed(0)
    indices = torch.stack(
        [torch.stack([torch.randperm(25, generator=g)[:6] for _ in prompts]) for _ in dense]
    )
    indices[:, 1, 4:] = -1
    tail_start = torch.tensor([33, 28])
    layers = {layer: i for i, layer in enumerate(dense)}
    cache = lm.new_cache(2, 64)
    for b, prompt in enumerate(prompts):
        lm.prefill(prompt, cache.row(b))
    chain = Tree.chain(torch.tensor([[5, 17], [8, 9]]))
    together = lm(chain, cache, view=View(indices, tail_start, layers))
    unguided = lm(chain, cache)
    for b in range(2):
        one = Tree(
            chain.tokens[b : b + 1],
            chain.parent[b : b + 1],
            chain.depth[b : b + 1],
            chain.mask[b : b + 1],
        )
        alone = lm(
            one, cache.row(b), view=View(indices[:, b : b + 1], tail_start[b : b + 1], layers)
        )
        torch.testing.assert_close(together[b], alone[0], rtol=1e-4, atol=1e-4)
        assert float((together[b] - unguided[b]).abs().max()) > 1e-2


def test_a_view_is_read_once_and_not_from_scratch_written_later():
    """The compact copy belongs to one round; the next round's view copies anew."""

    class Counting(Policy):
        """Shows everything by picks, so that nothing may be lost; a new view each time."""

        def view(self, cache):
            n = int(cache.length)
            return View(torch.arange(n)[None, None], torch.tensor([n]))

    lm = tiny.target("llama")
    stats = Stats()
    generate(
        lm,
        tiny.prompts(30),
        SelfDrafter(lm, Counting(), [1] * 4),
        max_new_tokens=1 + 5 * 4,
        stats=stats,
    )
    assert stats.mean_acceptance_length == 5


def test_weights_guide_better_than_chance():
    """Picks scored by attention weight keep more of the attention than as many random ones."""
    lm = tiny.target("llama")
    prompt = tiny.prompts(120)[0]
    with torch.inference_mode():
        cache = lm.new_cache(1, 140)
        lm.prefill(prompt, cache)
        root = Tree.root(torch.tensor([5]))
        captured = Captures(CaptureSpec("last", "weights"))
        full = lm(root, cache, captured=captured)
        cache.length += 1
        guided = Guided(0.07, 16, "weights", reach=0)
        guided.update(cache, captured)
        errors = []
        for policy in (guided, RandomSlots(0.07, 16)):
            view = policy.view(cache)
            cache.length -= 1  # the same root again, under the view of its own past
            view = View(view.indices, view.tail_start.clamp(max=120), view.layers)
            errors.append(float((lm(root, cache, view=view) - full).abs().max()))
            cache.length += 1
    assert errors[0] < errors[1]


@pytest.mark.parametrize("lag", [0, 2, 5])
def test_nodes_of_a_drafter_that_lags_behind_its_view_see_the_tail_of_their_tree(lag):
    """A small model reads the tokens it lacks under a view of the text as it is now, whose tail
    begins among them.
    """
    view = View(torch.tensor([[[0, 1, 2]]]), torch.tensor([20 + lag]))
    k = torch.randn(1, 40, 4)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    tail = view.segments(0, 0, StoredRow(k, k), 26, mask)[-1]
    assert tail.visible is not None and tail.visible.shape[1] == tail.k.shape[1] == 6 - lag
    assert tail.visible.equal(mask[:, lag:])
