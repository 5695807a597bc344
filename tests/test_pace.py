"""Pace: what it chooses at stated costs and acceptance, that plain text costs next to nothing, that it is lossless."""

from __future__ import annotations

import pytest
import tiny
import torch
from checks import SAMPLERS, SEED, check_lossless, plain
from listed import BUILD, ROWS, each_method

from longdraft import Stats, generate
from longdraft.core.tree import PAD, Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import AdaptiveDraft, Auto, Drafter
from longdraft.drafters.adaptive.adaptive_draft import EARLY, LATE, LONG, SHORT, TAPPED
from longdraft.drafters.adaptive.cost_model import ANY, WIDTHS, CostModel, ranks
from longdraft.drafters.costs import Measured

PLAIN = 10.0  # seconds of a step without drafts
NEW = 400


class Prophet(Drafter):
    """Up to `gamma` drafts, of which the first `good` are plain decoding's own; every tap is asked for."""

    def __init__(self, rows: list[list[int]], gamma: int, good):
        self.rows, self.gamma, self.good = rows, gamma, good
        self.round, self.tapped, self.depths = 0, 0, []

    def captures(self):
        self.tapped += 1
        return super().captures()

    def grow(self, tree, seqs, limits):
        for d in range(min(self.gamma, limits.depth)):
            n = int(seqs.length[0] - seqs.prompt[0]) + d
            right = self.rows[0][n] if n < len(self.rows[0]) else 0
            token = right if d < self.good(self.round) else (right + 1) % 96
            tree = tree.grow(torch.tensor([[tree.size - 1]]), torch.tensor([[token]]))
        self.round += 1
        self.depths.append(tree.size - 1)
        return tree


class Clock:
    """Seconds that pass: a plain step's, and so much more a draft that the round had."""

    def __init__(self, each: float):
        self.each, self.now, self.pace = each, 0.0, None

    def __call__(self) -> float:
        if self.pace.asked is not None:  # asked at the end of a round
            self.now += PLAIN + self.each * self.pace.depth
        return self.now


def run(good, each: float, gamma: int = 7) -> tuple[float, Prophet]:
    """-> seconds by the clock over those of plain decoding, and what was drafted; costs as stated."""
    [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)
    inner, clock = Prophet([row], gamma, good), Clock(each)
    clock.pace = AdaptiveDraft(inner, Measured(clock))
    stats = Stats()
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED, "stats": stats}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), clock.pace, **options) == [row]
    seconds = PLAIN * stats.steps + each * sum(inner.depths)
    return seconds / (PLAIN * stats.emitted), inner


def test_good_drafts_go_to_the_full_depth():
    share, inner = run(lambda n: 7, each=1.0)
    assert inner.depths[-22:-2] == [7] * 20 and share < 0.27  # 8 tokens in 17 seconds: 0.21 without the first rounds


def test_the_depth_follows_what_a_draft_costs_and_brings():
    assert max(run(lambda n: 3, each=2.0)[1].depths[-50:]) <= 4  # what is never accepted is not drafted
    cheap, dear = (run(lambda n: 7 if n % 2 else 1, each=each)[1].depths[-50:] for each in (0.2, 4.0))
    assert sum(cheap) > sum(dear)


def test_text_that_drafts_badly_costs_two_percent_at_most():
    """A draft that costs as much as a plain step and is never right: the worst there is."""
    share, inner = run(lambda n: 0, each=PLAIN)
    assert share < 1.02 and len(inner.depths) < 10
    assert inner.tapped < 20  # asleep it taps nothing


def test_it_wakes_when_drafts_become_good():
    share, inner = run(lambda n: 0 if n < 3 else 7, each=1.0)
    assert inner.depths[-3] == 7 and share < 0.75


def test_a_pace_that_never_sleeps_is_caught(monkeypatch):
    """The planted fault: always the full depth."""
    monkeypatch.setattr(AdaptiveDraft, "_shape", lambda self: (7, ANY))
    with pytest.raises(AssertionError):
        test_text_that_drafts_badly_costs_two_percent_at_most()


def test_the_ledger_guesses_between_and_beyond():
    ledger = CostModel()
    ledger.note(0, 0, ANY, [], 10.0)
    ledger.note(2, 2, ANY, [[0, 0]], 14.0)
    assert ledger.seconds(4) == [10.0, 12.0, 14.0, 16.0, 18.0]
    for _ in range(100):
        ledger.note(2, 2, ANY, [[0]], 14.0)
    tokens = ledger.tokens(3)
    assert tokens[0] == 1.0 and 1.9 < tokens[2] < 2.1 and tokens[3] - tokens[2] < 0.1
    assert ledger.best()[1:] == (1, ANY)


@each_method
@pytest.mark.parametrize("sampler", ["greedy", "T=1 min-p penalty"])
def test_every_method_is_lossless_at_any_pace(method, sampler, monkeypatch):
    """Depths, widths, sleep and waking by a plan drawn at random instead of by the clock."""
    draws = torch.Generator().manual_seed(3)

    def shape(self: AdaptiveDraft) -> tuple[int, int]:
        depth, width = torch.randint(0, 6, (2,), generator=draws).tolist()
        return depth + TAPPED, WIDTHS[min(width, 4)]

    monkeypatch.setattr(AdaptiveDraft, "_shape", shape)
    check_lossless(lambda t: AdaptiveDraft(BUILD[method](t)), "llama", SAMPLERS[sampler], ROWS["3 rows"], new=32)


@pytest.mark.parametrize("patience", [EARLY, LATE])
@pytest.mark.parametrize("cost", [0.0, 3.0, 5.0, 1e6])
def test_a_dear_try_is_followed_by_a_long_sleep(patience, cost):
    """Up to a limit; and each sleep is longer than the one before, up to another."""
    pace = AdaptiveDraft(Drafter())
    pace.ledger, pace.plan, pace.patience, pace.asleep, pace.cost = CostModel(), [], patience, 0, cost
    pace.ledger.note(0, 0, ANY, [], 1.0)
    pace.ledger.note(1, 1, ANY, [[]], 9.0)
    rounds = min(max(int(patience * cost), SHORT), LONG)
    found = [pace._shape()[0] for _ in range(rounds + 2)]
    assert found == [0] * rounds + [TAPPED, 1] and pace.patience == min(2 * patience, LATE)


class Bush(Drafter):
    """At every depth `nodes` drafts, of which the right one stands at place `rank`, below the right one before."""

    def __init__(self, row: list[int], nodes: int, depth: int, rank: int):
        self.row, self.nodes, self.depth, self.rank, self.shapes = row, nodes, depth, rank, []

    def grow(self, tree, seqs, limits):
        below, wide = 0, min(self.nodes, limits.width)
        for d in range(min(self.depth, limits.depth)):
            n = int(seqs.length[0] - seqs.prompt[0]) + d
            right = self.row[n] if n < len(self.row) else 0
            tokens = [right if i == self.rank else (right + 1 + i) % 96 for i in range(wide)]
            below, tree = (
                tree.size + min(self.rank, wide - 1),
                tree.grow(torch.full((1, wide), below), torch.tensor([tokens])),
            )
        self.shapes.append((int(tree.depth.max()), wide if tree.size > 1 else 0))
        return tree


def widths_of(rank: int, each: float) -> list[int]:
    """The widths of the last rounds of a bush whose nodes cost so much each."""
    [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)
    inner = Bush(row, 6, 4, rank)
    now = [0.0]

    def clock() -> float:
        if pace.asked is not None and inner.shapes:
            now[0] += PLAIN + each * (inner.shapes[-1][0] * inner.shapes[-1][1] if pace.asked > 0 else 0)
        return now[0]

    pace = AdaptiveDraft(inner, Measured(clock))
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), pace, **options) == [row]
    return [wide for _, wide in inner.shapes[-30:]]


def test_the_width_follows_where_the_right_drafts_stand():
    for rank, each, best in ((0, 0.5, 1), (1, 0.5, 2), (3, 0.5, 4), (5, 0.2, 6)):
        assert (found := widths_of(rank, each)).count(best) >= 27, (rank, found)


def test_a_ledger_that_overlooks_ranks_is_caught(monkeypatch):
    """The planted fault: whatever was accepted, a narrower tree would have had it."""
    monkeypatch.setattr(
        "longdraft.drafters.adaptive.adaptive_draft.ranks", lambda tree, verdict: [[0] * (n - 1) for n in verdict.count]
    )
    with pytest.raises(AssertionError):
        test_the_width_follows_where_the_right_drafts_stand()


@each_method
def test_every_method_drafts_as_narrow_as_it_is_asked_to(method, monkeypatch):
    """A drafter that overlooks the width would be tried at it again and again."""
    monkeypatch.setattr(AdaptiveDraft, "_shape", lambda self: (3, 2))
    seen = []

    class Watched(AdaptiveDraft):
        def grow(self, tree, seqs, limits):
            tree = super().grow(tree, seqs, limits)
            seen.append((tree.widest, int(tree.depth.max())))
            return tree

    check_lossless(lambda t: Watched(BUILD[method](t)), "llama", SAMPLERS["greedy"], ROWS["3 rows"], new=12)
    assert max(wide for wide, _ in seen) <= 2 and max(deep for _, deep in seen) <= 3, seen


def test_ranks_count_real_nodes_of_the_same_depth():
    tree = Tree.root(torch.tensor([1, 2])).grow(torch.tensor([[0, 0, 0], [0, PAD, 0]]), torch.tensor([[4, 5, 6]] * 2))
    tree = tree.grow(torch.tensor([[1, 3], [3, 3]]), torch.tensor([[7, 8]] * 2))
    verdict = Verdict(torch.tensor([[0, 3, 5], [0, 3, 3]]), torch.tensor([3, 2]), torch.zeros(2, 3))
    assert ranks(tree, verdict) == [[2, 1], [1]] and tree.widest == 3
    assert ranks(Tree.chain(torch.tensor([[1, 2, 3]])), Verdict(torch.tensor([[0, 1]]), torch.tensor([2]), None)) == [
        [0]
    ]


def test_auto_keeps_the_drafter_that_measures_best():
    """Three prophets of one cost: the second is right, the others are wrong after one or two drafts."""
    [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)
    prophets = [Prophet([row], 7, lambda n, good=good: good) for good in (1, 7, 2)]
    clock, drafter = Clock(1.0), Auto(prophets, rounds=12)
    for part in drafter.parts:
        part.given = Measured(lambda part=part: (setattr(clock, "pace", part), clock())[1])
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), drafter, **options) == [row]
    assert drafter.now.inner is prophets[1] and not drafter.trying
    assert [len(p.depths) <= 12 for p in prophets] == [True, False, True]
    assert prophets[1].depths[-3] == 7
