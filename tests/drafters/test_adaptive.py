"""AdaptiveDraft: its choices at given costs and acceptance, its small overhead where drafts fail, losslessness."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from types import SimpleNamespace

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless, plain
from support.listed import BUILD, ROWS, each_method, full

from longdraft import Stats, generate
from longdraft.core import Captures, CaptureSpec, DraftLimits
from longdraft.core.tree import PAD, UNBOUNDED, Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import AdaptiveDraft, Auto, Drafter
from longdraft.drafters.adaptive.cost_model import CostModel, ranks
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.adaptive.step_costs import Measured

PLAIN = 10.0  # seconds of a step without drafts
NEW = 400


class Prophet(Drafter):
    """Chains of `gamma` tokens at most; the first good(n) of the n-th are plain decoding's. Counts captures."""

    def __init__(self, rows: list[list[int]], gamma: int, good):
        self.rows, self.max_depth, self.good = rows, gamma, good
        self.drafts, self.captured, self.depths = 0, 0, []

    def captures(self):
        self.captured += 1
        return super().captures()

    def grow(self, tree, seqs, limits):
        for d in range(min(self.max_depth, limits.depth)):
            n = int(seqs.length[0] - seqs.prompt[0]) + d
            right = self.rows[0][n] if n < len(self.rows[0]) else 0
            token = right if d < self.good(self.drafts) else (right + 1) % 96
            tree = tree.grow(torch.tensor([[tree.size - 1]]), torch.tensor([[token]]))
        self.drafts += 1
        self.depths.append(tree.size - 1)
        return tree


class Clock:
    """Simulated time: PLAIN seconds per step, `fixed` more with a draft, and `each` more per drafted token."""

    def __init__(self, each: float, fixed: float = 0.0):
        self.each, self.fixed, self.now, self.drafter = each, fixed, 0.0, None

    def __call__(self) -> float:
        depth = self.drafter.depth if self.drafter.asked is not None else None
        if depth is not None:  # called at the end of a step
            self.now += PLAIN + self.fixed * (depth > 0) + self.each * depth
        return self.now


def run(good, each: float, fixed: float = 0.0, gamma: int = 7) -> tuple[float, Prophet]:
    """-> simulated seconds over those of plain decoding, and the inner drafter."""
    [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)
    inner, clock = Prophet([row], gamma, good), Clock(each, fixed)
    clock.drafter = AdaptiveDraft(inner, Measured(clock))
    stats = Stats()
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED, "stats": stats}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), clock.drafter, **options) == [row]
    seconds = PLAIN * stats.steps + sum(fixed + each * depth for depth in inner.depths if depth)
    return seconds / (PLAIN * stats.emitted), inner


def test_good_drafts_go_to_the_full_depth():
    share, inner = run(lambda n: 7, each=1.0)
    assert inner.depths[-22:-2] == [7] * 20 and share < 0.27  # 8 tokens in 17 seconds: 0.21 without the first rounds


def test_the_depth_follows_what_a_draft_costs_and_brings():
    assert max(run(lambda n: 3, each=2.0)[1].depths[-50:]) <= 4  # what is never accepted is not drafted
    cheap, dear = (run(lambda n: 7 if n % 2 else 1, each=each)[1].depths[-50:] for each in (0.2, 4.0))
    assert sum(cheap) > sum(dear)


@pytest.mark.parametrize("chain", [True, False])
def test_text_that_drafts_badly_costs_two_percent_at_most(chain, monkeypatch):
    """A draft that costs as much as a plain step and is never right: the worst there is."""
    monkeypatch.setattr(Prophet, "is_chain", chain)
    share, inner = run(lambda n: 0, each=PLAIN)
    assert share < 1.02 and len(inner.depths) < 10
    assert inner.captured < 20  # while drafting is off, nothing is captured


def test_drafting_is_turned_on_again_when_drafts_become_good():
    share, inner = run(lambda n: 0 if n < 3 else 7, each=1.0)
    assert inner.depths[-3] == 7 and share < 0.75


@pytest.mark.parametrize("chain", [True, False])
def test_fixed_costs_are_not_charged_to_every_level(chain, monkeypatch):
    """A draft of one token loses time even when it is right; drafts of seven gain much."""
    monkeypatch.setattr(Prophet, "is_chain", chain)
    for wrong in range(5):
        share, inner = run(lambda n, wrong=wrong: 0 if n == wrong else 7, each=1.0, fixed=10.0)
        assert inner.depths[-22:-2] == [7] * 20 and share < 0.6, (wrong, share)


def test_a_draft_that_finds_nothing_is_no_refusal():
    """An n-gram drafter that finds little: what it finds is right, so it is asked at every step."""
    [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)

    class Rare(Prophet):
        def grow(self, tree, seqs, limits):
            return super().grow(tree, seqs, limits if int(seqs.length[0]) % 5 == 0 else limits.within(0))

    inner = Rare([row], 7, lambda n: 7)
    clock = Clock(1.0)
    clock.drafter = AdaptiveDraft(inner, Measured(clock))
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), clock.drafter, **options) == [row]
    assert sum(depth > 0 for depth in inner.depths) > 30


def test_drafting_that_is_never_turned_off_is_caught(monkeypatch):
    """The planted fault: always the full depth."""
    monkeypatch.setattr(Pace, "shape", lambda self, captured: (7, UNBOUNDED))
    with pytest.raises(AssertionError):
        test_text_that_drafts_badly_costs_two_percent_at_most(True, monkeypatch)


def test_the_cost_model_interpolates_and_extrapolates():
    model = CostModel(7)
    model.plain.append(10.0)
    model.add(2, UNBOUNDED, [[0, 0]], 14.0)
    assert model.line() == (10.0, 2.0)  # one depth is known: all that it costs beyond a plain step is its levels'
    model.add(4, UNBOUNDED, [[0, 0]], 15.0)
    fixed, level = model.line()
    assert fixed == pytest.approx(13.0) and level == pytest.approx(0.5)
    for _ in range(100):
        model.add(2, UNBOUNDED, [[0]], 14.0)
    tokens = model.tokens(3)
    assert tokens[0] == 1.0 and 1.9 < tokens[2] < 2.1 and tokens[3] - tokens[2] < 0.2
    assert model.best()[1:] == (1, UNBOUNDED)


def test_noise_makes_no_draft_cheaper_than_a_plain_step():
    model = CostModel(7)
    model.plain.append(10.0)
    for depth, cost in ((2, 30.0), (4, 20.0), (6, 25.0)):
        model.add(depth, UNBOUNDED, [[]], cost)
    fixed, level = model.line()
    assert level == 0.0 and fixed == pytest.approx(25.0)


@each_method
@pytest.mark.parametrize("sampler", [pytest.param("greedy", marks=full), "T=1 min-p penalty"])
def test_every_method_is_lossless_whatever_is_chosen(method, sampler, monkeypatch):
    """Depths, widths, and steps with and without captures, drawn at random instead of chosen by cost."""
    draws = torch.Generator().manual_seed(3)

    def shape(self: Pace, captured: bool) -> tuple[int, int]:
        depth, width = torch.randint(0, 6, (2,), generator=draws).tolist()
        return depth - 1, (1, 2, 4, 8, UNBOUNDED)[min(width, 4)]  # -1: no draft, but captures

    monkeypatch.setattr(Pace, "shape", shape)
    check_lossless(lambda t: AdaptiveDraft(BUILD[method](t)), "llama", SAMPLERS[sampler], ROWS["3 rows"], new=32)


def test_pauses_grow_with_what_drafting_has_cost():
    """Each pause is longer than the one before it, and pauses after dear probes are longer than after cheap ones."""

    def pauses(each: float) -> list[int]:
        steps, grow = [], Prophet.grow

        class Timed(Prophet):
            def grow(self, tree, seqs, limits):
                steps.append(int(seqs.length[0]))
                return grow(self, tree, seqs, limits)

        [row] = plain("llama-loops", SAMPLERS["T=1"], (70,), NEW)
        clock = Clock(each)
        clock.drafter = AdaptiveDraft(Timed([row], 7, lambda n: 0), Measured(clock))
        options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
        generate(tiny.target("llama-loops"), tiny.prompts(70), clock.drafter, **options)
        gaps = [later - earlier for earlier, later in pairwise(steps)]
        return [gap for gap in gaps if gap > 3]

    cheap, dear = pauses(PLAIN / 10), pauses(PLAIN)
    assert len(cheap) > 2 and cheap == sorted(cheap) and dear == sorted(dear)
    assert dear[0] > 2 * cheap[0] and len(dear) < len(cheap)


class Bush(Drafter):
    """At every depth `nodes` drafts, of which the right one stands at place `rank`, below the right one before."""

    def __init__(self, row: list[int], nodes: int, depth: int, rank: int):
        self.row, self.nodes, self.max_depth, self.rank, self.shapes = row, nodes, depth, rank, []

    def grow(self, tree, seqs, limits):
        below, wide = 0, min(self.nodes, limits.width)
        for d in range(min(self.max_depth, limits.depth)):
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
        if drafter.asked is not None:  # called at the beginning of a step, where it does not matter, and at its end
            now[0] += PLAIN + each * (prod(inner.shapes[-1]) if drafter.asked > 0 and inner.shapes else 0)
        return now[0]

    drafter = AdaptiveDraft(inner, Measured(clock))
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), drafter, **options) == [row]
    return [wide for _, wide in inner.shapes[-30:]]


class ByRows:
    """Costs in plain steps: drafts are cheap for one row, and cost a plain step per level for more."""

    def begin(self) -> None: ...

    def end(self, inner, seqs, tree, depth, captured) -> float:
        return 1 + depth * (0.05 if len(seqs.length) == 1 else 1.0)


class Chains(Drafter):
    """Chains of 7 tokens of which plain decoding would say the first 6, whatever the number of rows."""

    max_depth, is_chain = 7, True

    def grow(self, tree, seqs, limits):
        for _ in range(min(self.max_depth, limits.depth)):
            tree = tree.grow(torch.full((len(seqs.length), 1), tree.size - 1), torch.zeros(len(seqs.length), 1).long())
        return tree


def depths_by_rows() -> dict[int, list[int]]:
    """{rows: the depth of each step's draft}: four rows, then one, and so on, 40 steps at a time."""
    drafter, found = AdaptiveDraft(Chains(), ByRows()), {1: [], 4: []}  # type: ignore[arg-type]
    seqs = {n: SimpleNamespace(length=torch.zeros(n), done=torch.zeros(n).bool(), seed=torch.zeros(n)) for n in found}
    drafter.start(seqs[1])
    for turn in range(6):
        rows = (4, 1)[turn % 2]
        for _ in range(40):
            tree = drafter.grow(Tree.root(torch.zeros(rows).long()), seqs[rows], DraftLimits())
            depth = int(tree.depth.max())
            right = min(depth, 6)
            path = torch.arange(right + 1).expand(rows, -1)
            drafter.update(
                seqs[rows], tree, Verdict(path, torch.full((rows,), right + 1), path), Captures(CaptureSpec())
            )
            found[rows].append(depth)
    return found


def test_a_batch_and_a_single_row_are_paced_apart():
    found = depths_by_rows()
    assert sum(found[4]) < 30 and sum(found[1][-40:]) > 230, found


def test_one_pace_for_all_numbers_of_rows_is_caught(monkeypatch):
    """The planted fault: what was measured for one row holds for four."""
    monkeypatch.setattr(AdaptiveDraft, "_pace_for", lambda self, rows: self.paces.setdefault(0, Pace(7, 4, True)))
    with pytest.raises(AssertionError):
        test_a_batch_and_a_single_row_are_paced_apart()


def test_the_width_follows_where_the_right_drafts_stand():
    for rank, each, best in ((0, 0.5, 1), (1, 0.5, 2), (3, 0.5, 4), (5, 0.2, 6)):
        assert (found := widths_of(rank, each)).count(best) >= 27, (rank, found)


def test_a_cost_model_that_ignores_ranks_is_caught(monkeypatch):
    """The planted fault: whatever was accepted, a narrower tree would have had it."""
    monkeypatch.setattr(
        "longdraft.drafters.adaptive.adaptive_draft.ranks", lambda tree, verdict: [[0] * (n - 1) for n in verdict.count]
    )
    with pytest.raises(AssertionError):
        test_the_width_follows_where_the_right_drafts_stand()


@each_method
def test_every_method_drafts_as_narrow_as_it_is_asked_to(method, monkeypatch):
    """A drafter that overlooks the width would be tried at it again and again."""
    monkeypatch.setattr(Pace, "shape", lambda self, captured: (3, 2))
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
    for part in drafter.drafters:
        part.given = Measured(lambda part=part: (setattr(clock, "drafter", part), clock())[1])
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS["T=1"], "seed": SEED}
    assert generate(tiny.target("llama-loops"), tiny.prompts(70), drafter, **options) == [row]
    assert drafter.now.inner is prophets[1] and not drafter.trying
    assert [len(p.depths) <= 12 for p in prophets] == [True, False, True]
    assert prophets[1].depths[-3] == 7
