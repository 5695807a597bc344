"""TokenSwift's partial cache against a slot-by-slot simulation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, check_lossless
from support.structure import check_view

from longdraft import ops
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures
from longdraft.core.tree import Tree
from longdraft.drafters import SelfDrafter
from longdraft.engine.generate import generate
from longdraft.views import Partial

LAYERS = (0, 2)
HEADS = 2


class Naive:
    """One layer, key head and row: lists of slots, moved one by one."""

    def __init__(self, budget: int, sink: int):
        self.budget = budget
        self.sink = sink
        self.stale = True
        self.first: list[int] = []
        self.ranked: list[int] = []
        self.newer: list[int] = []
        self.known = 0
        self.built = 0

    def update(self, length: int, scores: list[float] | None) -> None:
        """length committed slots; scores of slots 0..root before them if the verification was
        asked.
        """
        if self.stale and scores is not None:
            covered = min(len(scores), length)
            self.first = list(range(min(self.sink, covered)))
            rest = range(self.sink, covered)
            self.ranked = sorted(rest, key=lambda s: -scores[s])
            self.newer = []
            self.known = covered
            self.built = covered
        for slot in range(self.known, length):
            (self.newer if slot >= self.sink else self.first).append(slot)
        self.known = max(self.known, length)
        while len(self.first) + len(self.ranked) + len(self.newer) > self.budget:
            self.ranked.pop() if self.ranked else self.newer.pop(0)
        self.stale = length - self.built >= self.budget - self.sink

    @property
    def seen(self) -> set[int]:
        return {*self.first, *self.ranked, *self.newer}


def seen(view, layer: int, head: int, b: int, length: int) -> list[int]:
    if view is None:
        return list(range(length))
    indices = view.indices[view.layers[layer], b, head]
    return [*indices[indices >= 0].tolist(), *range(int(view.tail_start[b]), length)]


@pytest.mark.full
@given(
    st.integers(4, 20),
    st.integers(0, 6),
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.lists(st.integers(1, 6), min_size=20, max_size=60),
    st.integers(0, 999),
)
def test_partial_is_the_simulation(budget, sink, lengths, accepted, seed):
    """Many rounds, rows of unequal lengths that accept unequally, ends of rows, several
    rankings.
    """
    g = torch.Generator().manual_seed(seed)
    sink = min(sink, budget - 1)
    policy = Partial(budget, sink)
    B = len(lengths)
    cache = KVCache(B, 8)
    cache.length += torch.tensor(lengths)
    naive = {
        (layer, h, b): Naive(budget, sink)
        for layer in LAYERS
        for h in range(HEADS)
        for b in range(B)
    }
    ranked = 0
    for step, count in enumerate(accepted):
        captured = Captures(policy.captures())
        before = cache.length.clone()
        asked = captured.spec.rows is not None
        assert asked == any(n.stale for n in naive.values())
        if asked:
            captured.covered, most = before + 1, int(before.max()) + 1
            captured.scores = {
                layer: torch.randn(B, 1, HEADS, most, generator=g) for layer in LAYERS
            }
            for b, n in enumerate(captured.covered.tolist()):
                for s in captured.scores.values():
                    s[b, ..., n:] = float("-inf")
            ranked += 1
        ends = torch.arange(B) * 7 + 5 < step  # a row that is done commits nothing more
        cache.length += torch.where(
            ends & (torch.arange(B) > 0), 0, 1 + (count + torch.arange(B)) % 4
        )
        policy.update(cache, captured)
        view = policy.view(cache)
        for (layer, h, b), one in naive.items():
            scores = (
                captured.scores[layer][b, 0, h, : int(before[b]) + 1].tolist() if asked else None
            )
            one.update(int(cache.length[b]), scores)
            found = seen(view, layer, h, b, int(cache.length[b]))
            assert (
                len(found)
                == len(set(found))
                <= max(budget, int(max(cache.length)) if view is None else 0)
            )
            assert set(found) == one.seen
    assert ranked > 0


def test_a_budget_of_the_context_is_everything():
    lm = tiny.target("llama")
    drafter = SelfDrafter(lm, Partial(64), [1] * 3)
    stats = check_lossless(lambda t: drafter, "llama", SAMPLERS["T=1"], (30, 11), new=1 + 4 * 4)
    assert stats.mean_acceptance_length == 4


@torch.inference_mode()
def test_slots_are_ranked_by_the_roots_query_summed_over_its_group():
    """Eq. 2 with query and keys caught on their way into attention."""
    lm = tiny.target("llama-torch")
    prompt = tiny.prompts(40)[0]
    cache = lm.new_cache(1, 48)
    policy = Partial(12, 4)
    lm.prefill(prompt[:-1], cache)
    captured = Captures(policy.captures())
    caught = []
    real = ops.attend

    def spy(q, segments, *others):
        caught.append((q, segments[0].k))
        return real(q, segments, *others)

    ops.attend = spy
    try:
        lm(Tree.root(torch.tensor(prompt[-1:])), cache, captured=captured)
    finally:
        ops.attend = real
    cache.length += 1
    policy.update(cache, captured)
    view = policy.view(cache)
    assert view is not None
    check_view(view, cache)
    for layer, (q, k) in enumerate(caught):
        for head in range(2):
            importance = sum(k[head] @ q[h, 0] for h in (2 * head, 2 * head + 1))
            want = {0, 1, 2, 3} | {4 + int(i) for i in importance[4:40].topk(8).indices}
            assert set(seen(view, layer, head, 0, 40)) == want


@pytest.mark.parametrize("model", ["llama", "gpt-oss", "mistral-window"])
def test_a_long_run_ranks_anew_and_keeps_to_the_budget(model):
    lm = tiny.target(model)
    asked = []

    class Watched(Partial):
        def update(self, cache, captured: Captures) -> None:
            asked.append(bool(captured.scores))
            super().update(cache, captured)
            view = self.view(cache)
            if view is not None:
                check_view(view, cache)
                shown = (view.indices >= 0).sum(-1) + (cache.length - view.tail_start)[
                    None, :, None
                ]
                assert int(shown.max()) <= 20

    generate(lm, tiny.prompts(30, 1), SelfDrafter(lm, Watched(20, 4), [1] * 3), max_new_tokens=60)
    assert asked[0] == (model != "mistral-window")
    assert (2 <= sum(asked) < len(asked) / 3) == (model != "mistral-window")
