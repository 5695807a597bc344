"""AdaptiveDraft: its choices at stated costs, what it may lose where drafts fail, losslessness."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.listed import BUILD, ROWS, each_method, full
from support.prices import Stated
from support.prophets import NEW, Prophet, decode, text

from longdraft import build, generate
from longdraft.core import Captures, CaptureSpec, DraftLimits
from longdraft.core.tree import PAD, UNBOUNDED, Tree
from longdraft.core.verify import Verdict
from longdraft.costs.counts import counted
from longdraft.costs.passes import PassCosts
from longdraft.drafters import AdaptiveDraft, Drafter, PlainDecoding, SelfDrafter
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS
from longdraft.drafters.adaptive.correction import Correction
from longdraft.drafters.adaptive.decision import CAPTURE_ONLY, PLAIN, Decision, Draft
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance, ranks
from longdraft.drafters.adaptive.pace import Pace, Rated
from longdraft.drafters.adaptive.prices import (
    CostTable,
    Predicted,
    levels_of,
    tabulate,
    verifications,
)
from longdraft.drafters.price import DraftPrice, Lengths
from longdraft.views import Full, Guided


def run(
    good, prices: Stated | None = None, new: int = NEW, gamma: int = 7, usual: float = 0.8
) -> tuple:
    """-> cost over that of plain decoding, and the inner drafter."""
    prices = prices or Stated(0.1)
    inner = Prophet([text(new)], gamma, good, usual)
    stats = decode(AdaptiveDraft(inner, prices), new)
    drafts = sum(
        prices.fixed + (prices.each + prices.node) * depth for depth in inner.depths if depth
    )
    return (stats.steps + 1 + drafts + prices.look * inner.captured) / new, inner


# What is drafted ----------------------------------------------------------------------------------


@pytest.mark.full
def test_drafts_begin_at_the_first_step_that_can_draft_and_go_to_the_full_depth():
    share, inner = run(lambda n: 7)
    assert (
        inner.steps[0] == 1
        and inner.depths[0] >= 4
        and inner.depths[3:-2] == [7] * (len(inner.depths) - 5)
    )
    assert share < 0.25  # 8 tokens in 1.77 plain steps


@pytest.mark.full
def test_the_depth_follows_what_a_draft_costs_and_brings():
    # what is never accepted is not drafted
    assert max(run(lambda n: 3, Stated(0.2))[1].depths[-50:]) <= 4
    cheap, dear = (
        run(lambda n: 7 if n % 2 else 1, Stated(each))[1].depths[-50:] for each in (0.02, 0.4)
    )
    assert sum(cheap) > sum(dear)


BAD = [Stated(1.0), Stated(0.1), Stated(0.2, fixed=0.5, look=0.3)]


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize(("new", "most"), [(96, 1.04), (440, 1.02)])
@pytest.mark.parametrize("prices", BAD, ids=["1", "0.1", "look"])
def test_text_that_drafts_badly_costs_two_percent_at_most(prices, new, most):
    """4% of 96 tokens. A draft that is never right is the worst there is."""
    share, inner = run(lambda n: 0, prices, new, usual=0.97)
    assert share <= most and 0 < len(inner.depths) < 50
    if prices.look:
        assert inner.captured < 30  # while drafting is off, nothing is captured


@pytest.mark.full
def test_drafting_that_is_never_turned_off_is_caught(monkeypatch):
    """The planted fault: always the full depth."""
    monkeypatch.setattr(Pace, "decide", lambda self, captured: Draft(7))
    with pytest.raises(AssertionError):
        test_text_that_drafts_badly_costs_two_percent_at_most(Stated(0.1), 440, 1.02)


def test_a_budget_that_allows_everything_is_caught(monkeypatch):
    """The planted fault: drafts are made whatever they may lose."""
    monkeypatch.setattr(Budget, "allows", lambda self, extra: True)
    monkeypatch.setattr(Budget, "wait", lambda self, extra: 0)
    with pytest.raises(AssertionError):
        test_text_that_drafts_badly_costs_two_percent_at_most(BAD[2], 96, 1.04)


@pytest.mark.full
def test_nothing_is_drafted_where_not_even_right_drafts_would_pay():
    share, inner = run(lambda n: 7, Stated(1.0, fixed=1.0))
    assert len(inner.depths) < 10 and share < 1.02
    none = AdaptiveDraft(Prophet([text()], 7, lambda n: 7), Stated(1.0, fixed=1.0))
    assert decode(none).predicted_speedup == 1.0


@pytest.mark.full
def test_drafting_is_turned_on_again_when_drafts_become_good():
    share, inner = run(lambda n: 0 if n < 3 else 7)
    assert inner.depths[-3] == 7 and share < 0.6


def test_fixed_costs_are_not_charged_to_every_level():
    """A draft of one token loses time even when it is right; drafts of seven gain much."""
    share, inner = run(lambda n: 7, Stated(0.05, fixed=1.0))
    assert inner.depths[-22:-2] == [7] * 20 and share < 0.5


def test_a_draft_that_finds_nothing_is_no_refusal():
    """An n-gram drafter that finds little: what it finds is right, so it is asked at every step."""

    class Rare(Prophet):
        finds = 0.5

        def grow(self, tree, seqs, limits):
            return super().grow(
                tree, seqs, limits if int(seqs.length[0]) % 5 == 0 else limits.within(0)
            )

    inner = Rare([text()], 7, lambda n: 7)
    decode(AdaptiveDraft(inner, Stated(0.01)))
    assert sum(depth > 0 for depth in inner.depths) > 30


@pytest.mark.full
def test_pauses_grow_with_what_drafting_has_cost():
    def pauses(each: float) -> list[int]:
        inner = run(lambda n: 0, Stated(each))[1]
        gaps = [b - a for a, b in pairwise(inner.steps)]
        return [gap for gap in gaps if gap > 2]

    cheap = pauses(0.1)
    dear = pauses(1.0)
    assert len(cheap) > len(dear) > 1 and cheap == sorted(cheap) and dear == sorted(dear)


@pytest.mark.full
def test_the_forecast_is_what_is_expected_at_the_start():
    """usual 0.8, at 0.11 plain steps a token: 1 + 0.8 + .. + 0.8^7 tokens in 1.77 plain steps."""
    stats = decode(AdaptiveDraft(Prophet([text()], 7, lambda n: 7), Stated(0.1)))
    assert stats.predicted_speedup == pytest.approx(
        max(sum(0.8**i for i in range(d + 1)) / (1 + 0.11 * d) for d in range(8))
    )
    assert decode(PlainDecoding()).predicted_speedup is None
    once = decode(AdaptiveDraft(Prophet([text()], 7, lambda n: 7), Stated(0.1, once=NEW)))
    assert once.predicted_speedup == 1.0  # what it must read first takes longer than it can gain


# What is kept -------------------------------------------------------------------------------------


@pytest.mark.full
def test_what_was_refused_in_one_text_is_known_in_the_next():
    inner = Prophet([text()], 7, lambda n: 0)
    drafter = AdaptiveDraft(inner, Stated(0.1))
    decode(drafter)
    first = len(inner.depths)
    decode(drafter)
    assert first > 5 and len(inner.depths) - first < first


def test_what_is_usual_follows_the_sampler():
    inner = Prophet([text()], 7, lambda n: 7)
    inner.usual = (0.9, 0.3)
    drafter = AdaptiveDraft(inner, Stated(0.1))
    for sampler, usual in (("greedy", 0.9), ("T=1", 0.3), ("greedy", 0.9)):
        generate(
            tiny.target("llama-loops"),
            tiny.prompts(70),
            drafter,
            max_new_tokens=2,
            sampler=SAMPLERS[sampler],
        )
        assert drafter.pace.acceptance.usual == usual


def test_what_is_usual_differs_between_methods():
    lm = tiny.target("llama")
    usual = [
        build(name, lm).price().usual
        for name in ("vegas", "magicdec-stream", "quantspec", "random-picks")
    ]
    assert len(set(usual)) == 4 and all(0 < sampled <= greedy < 1 for greedy, sampled in usual)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 3)), max_size=300))
def test_the_debt_never_exceeds_its_limit(steps):
    """Whatever is accepted, if only allowed steps are made."""
    budget = Budget()
    tokens = 0
    for good, extra in steps:
        extra = extra if budget.allows(extra) else 0.0
        emitted = 1 + (good if extra else 0)
        budget.owe(1 + extra, emitted)
        tokens += emitted
        assert budget.debt <= DEFAULTS.allowed * (DEFAULTS.early + tokens) ** 0.5 + 1e-9
        n = budget.wait(1.0)
        assert Budget(budget.debt, budget.tokens + n).allows(1.0 - 1e-6)


# Acceptance ---------------------------------------------------------------------------------------


def test_expected_tokens_begin_with_what_is_usual_and_end_with_what_was_seen():
    known = LearnedAcceptance(usual=0.5)
    [mean] = known.means([1])
    assert [t for t, _ in known.expected(1, mean, [1.0] * 3)] == [1.0, 1.5, 1.75, 1.875]
    for _ in range(300):
        known.add(3, 1, [1.0] * 3, [[0, 0]])
    [mean] = known.means([1])
    tokens, nodes = zip(*known.expected(1, mean, [1.0] * 3), strict=True)
    assert 1.85 < tokens[1] <= 2 and 2.7 < tokens[2] <= 3 and tokens[3] - tokens[2] < 0.2
    assert nodes == pytest.approx((0, 1, 2, 3))


def test_what_was_not_drafted_was_not_refused():
    known = LearnedAcceptance(usual=0.5, finds=1.0)
    for _ in range(300):
        known.add(4, 1, [], [[]])
        known.add(4, 1, [1.0, 1.0], [[0, 0]])
    [mean] = known.means([1])
    assert mean > 0.9 and known.share_found == pytest.approx(0.5, abs=0.05)
    tokens, nodes = known.expected(1, mean, [1.0] * 4)[-1]
    assert 1.8 < tokens < 2.1 and nodes == pytest.approx(2, abs=0.1)


def test_wider_trees_are_expected_to_hold_more_until_they_are_seen():
    known = LearnedAcceptance(usual=0.5)
    one, two, four = known.means([1, 2, 4])
    assert one == 0.5 < two < four == pytest.approx(0.75)
    for _ in range(200):
        known.add(1, 4, [1.0], [[3]])  # the fourth node is right
    one, two, four = known.means([1, 2, 4])
    assert one < 0.05 and two < 0.1 and four > 0.9


def test_ranks_count_real_nodes_of_the_same_depth():
    tree = Tree.root(torch.tensor([1, 2])).grow(
        torch.tensor([[0, 0, 0], [0, PAD, 0]]), torch.tensor([[4, 5, 6]] * 2)
    )
    tree = tree.grow(torch.tensor([[1, 3], [3, 3]]), torch.tensor([[7, 8]] * 2))
    verdict = Verdict(torch.tensor([[0, 3, 5], [0, 3, 3]]), torch.tensor([3, 2]), torch.zeros(2, 3))
    assert ranks(tree, verdict) == [[2, 1], [1]] and tree.widest == 3
    chain = Verdict(torch.tensor([[0, 1]]), torch.tensor([2]), torch.zeros(1, 2))
    assert ranks(Tree.chain(torch.tensor([[1, 2, 3]])), chain) == [[0]]


# Widths, rows, views ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BushPrice(DraftPrice):
    wide: int

    def levels(self, depth, width):
        return [min(self.wide, width)] * min(depth, self.max_depth)


class Bush(Drafter):
    """At every depth `nodes` drafts, of which the right one stands at place `rank`, below the right
    one before.
    """

    def __init__(self, row: list[int], nodes: int, depth: int, rank: int):
        self.row = row
        self.wide = nodes
        self.max_depth = depth
        self.rank = rank
        self.shapes = []

    def price(self):
        return BushPrice(max_depth=self.max_depth, wide=self.wide)

    def grow(self, tree, seqs, limits):
        below = 0
        wide = min(self.wide, limits.width)
        for d in range(min(self.max_depth, limits.depth)):
            n = int(seqs.length[0] - seqs.prompt[0]) + d
            right = self.row[n] if n < len(self.row) else 0
            tokens = [right if i == self.rank else (right + 1 + i) % 96 for i in range(wide)]
            parents = torch.full((1, wide), below)
            first = tree.size
            below = first + min(self.rank, wide - 1)
            tree = tree.grow(parents, torch.tensor([tokens]))
        self.shapes.append((int(tree.depth.max()), wide if tree.size > 1 else 0))
        return tree


def widths_of(rank: int, node: float) -> list[int]:
    """The widths of the last drafts of a bush whose nodes cost so much each to verify."""
    inner = Bush(text(), 6, 4, rank)
    decode(AdaptiveDraft(inner, Stated(0.02, node=node)))
    return [wide for _, wide in inner.shapes[-30:]]


@pytest.mark.full
def test_the_width_follows_where_the_right_drafts_stand():
    for rank, node, best in ((0, 0.05, 1), (1, 0.05, 2), (3, 0.05, 4), (5, 0.02, 6)):
        assert (found := widths_of(rank, node)).count(best) >= 27, (rank, found)


@pytest.mark.full
def test_acceptance_that_ignores_ranks_is_caught(monkeypatch):
    """The planted fault: whatever was accepted, a narrower tree would have had it."""
    monkeypatch.setattr(
        "longdraft.drafters.adaptive.adaptive_draft.ranks",
        lambda tree, verdict: [[0] * (n - 1) for n in verdict.count],
    )
    with pytest.raises(AssertionError):
        test_the_width_follows_where_the_right_drafts_stand()


class Chains(Drafter):
    """Chains of 7 tokens of which plain decoding would say the first 6, whatever the number of
    rows.
    """

    max_depth = 7
    is_chain = True

    def price(self):
        return DraftPrice(max_depth=self.max_depth, usual=(0.8, 0.8))

    def grow(self, tree, seqs, limits):
        for _ in range(min(self.max_depth, limits.depth)):
            tree = tree.grow(
                torch.full((len(seqs.length), 1), tree.size - 1),
                torch.zeros(len(seqs.length), 1).long(),
            )
        return tree


def rows(n: int) -> SimpleNamespace:
    length = torch.full((n,), 100)
    zeros = torch.zeros(n, dtype=torch.long)
    cache = SimpleNamespace(length=length)
    limit = torch.full((n,), 900)
    done = torch.zeros(n).bool()
    return SimpleNamespace(
        length=length,
        cache=cache,
        prompt=length,
        limit=limit,
        done=done,
        deepest=[UNBOUNDED] * n,
        seed=zeros,
        sampler=SAMPLERS["greedy"],
    )


def depths_by_rows() -> dict[int, list[int]]:
    """{rows: the depth of each step's draft}: four rows, then one, and so on, 40 steps at a time.
    Drafts are cheap for one row, and cost a plain step per level for four.
    """
    drafter = AdaptiveDraft(Chains(), Stated(0.05, more=lambda rows: 1 if rows == 1 else 20))
    seqs = {n: rows(n) for n in (1, 4)}
    found = {1: [], 4: []}
    drafter.start(seqs[1])  # type: ignore[arg-type]
    for turn in range(6):
        n = (4, 1)[turn % 2]
        for _ in range(40):
            tree = drafter.grow(Tree.root(torch.zeros(n).long()), seqs[n], DraftLimits())  # type: ignore[arg-type]
            depth = int(tree.depth.max())
            right = min(depth, 6)
            path = torch.arange(right + 1).expand(n, -1)
            verdict = Verdict(path, torch.full((n,), right + 1), path)
            drafter.update(seqs[n], tree, verdict, Captures(CaptureSpec()))  # type: ignore[arg-type]
            found[n].append(depth)
    return found


def test_rows_are_priced_together():
    """With four rows drafts do not pay; when one is left, drafting goes on at once."""
    found = depths_by_rows()
    assert sum(found[4]) < 30 and sum(found[1][-38:]) >= 38 * 6, found


def test_costs_of_one_row_for_all_are_caught(monkeypatch):
    """The planted fault: costs are predicted once and hold for any number of rows."""
    reprice = AdaptiveDraft._reprice
    monkeypatch.setattr(
        AdaptiveDraft, "_reprice", lambda self, seqs: self.pace.table or reprice(self, seqs)
    )
    with pytest.raises(AssertionError):
        test_rows_are_priced_together()


def table(look: float) -> CostTable:
    depths = [0.1 * d for d in range(8)]
    levels = {1: [1.0] * 7}
    return CostTable(
        1.0, [1], levels, {1: depths}, [1 + 0.05 * n for n in range(8)], look, 0.0, {1: 1}
    )


def test_a_view_stays_for_more_steps_where_choosing_one_is_expensive():
    stays = []
    for look in (0.0, 0.2, 1.0):
        pace = Pace(LearnedAcceptance(0.9), Budget(), table(look))
        pace.renew()
        stays.append(pace.stays)
    assert stays[0] == 1 and stays == sorted(stays) and stays[-1] > 1
    assert set(stays) <= set(DEFAULTS.view_ages)


def test_a_guided_view_that_stays_is_chosen_every_so_many_steps():
    lm = tiny.target("llama")
    for steps in (1, 3):
        drafter = build("vegas", lm, gamma=2, min_budget=16)
        asked = []
        drafter.stay(steps)
        captures = drafter.captures
        drafter.captures = lambda captures=captures, asked=asked: (
            asked.append(captures()),
            asked[-1],
        )[1]
        check_lossless(lambda t, drafter=drafter: drafter, "llama", SAMPLERS["greedy"], (70,), 30)
        chosen = [spec.rows is not None for spec in asked]
        assert all(chosen[::steps]) and sum(chosen) == -(-len(chosen) // steps)
    assert Guided().renews and not BUILD["magicdec-stream"](lm).renews


# Costs --------------------------------------------------------------------------------------------


def test_measurements_correct_predictions_slowly_and_within_bounds():
    lm = tiny.target("llama")
    prices = Predicted(lm, counted(lm), corrects=True)
    for _ in range(60):
        # everything takes longer than was predicted
        prices.observe("plain", prices.scale("plain"), 5.0)
        prices.observe("verify", prices.scale("verify"), 5.0)
    assert prices.scale("plain") == pytest.approx(prices.scale("verify"), rel=0.05)
    before = prices.scale("verify")
    prices.observe("verify", 1.0, 500.0)  # an outlier
    assert prices.scale("verify") < 1.05 * before
    for _ in range(3000):
        prices.observe("plain", prices.scale("plain"), 1.0)
        prices.observe("verify", prices.scale("verify"), 2.0)
    assert prices.scale("verify") / prices.scale("plain") == pytest.approx(2, rel=0.1)
    for _ in range(3000):
        prices.observe("verify", 1.0, 1e6)
    assert prices.scale("verify") <= DEFAULTS.max_correction + 1e-9


def corrected_by(anchors: int) -> float:
    """The scale of verifications that take 1.4 times as long as predicted, after ten, with so many
    plain steps.
    """
    prices = Predicted(tiny.target("llama"), PassCosts(call=1.0), corrects=True)
    for i in range(10):
        if i < anchors:
            prices.observe("plain", 1.0, 3.0)
        prices.observe("verify", prices.scale("verify"), 4.2)
    return prices.scale("verify") / prices.scale("plain")


def corrected_by_width(part: str = "verify", wide: int = 32) -> Predicted:
    """Passes over many nodes take 1.6 times as long as predicted, others exactly as long."""
    prices = Predicted(tiny.target("llama"), PassCosts(call=1.0), corrects=True)
    for _ in range(200):
        prices.observe("plain", 1.0, 1.0)
        prices.observe("verify", prices.scale("verify", 2), 1.0, 2)
        captured = prices.scale("captured") if part == "captured" else 1.0
        prices.observe(part, captured * prices.scale("verify", wide), 1.6, wide)
        if part == "captured":
            prices.observe(part, prices.scale(part), 1.0, 1)
    return prices


@pytest.mark.parametrize("part", ["verify", "captured"])
def test_wide_verifications_are_corrected_apart(part):
    """What they cost more is not what capturing costs."""
    prices = corrected_by_width(part)
    assert prices.scale("verify", 32) == pytest.approx(1.6, rel=0.05)
    assert prices.scale("verify", 48) > 1.4
    assert prices.scale("verify", 2) == pytest.approx(1.0, rel=0.05)
    assert prices.scale("captured") == pytest.approx(1.0, rel=0.05)


def test_one_correction_for_all_widths_is_seen(monkeypatch):
    move = Correction.move
    monkeypatch.setattr(Correction, "move", lambda self, nodes, *by: move(self, 1, *by))
    monkeypatch.setattr(Correction, "at", lambda self, nodes: self._off[0])
    prices = corrected_by_width()
    assert prices.scale("verify", 32) < 1.4 and prices.scale("verify", 2) > 1.15


def test_verifying_many_nodes_costs_what_was_measured_of_it():
    """Where many nodes take longer than predicted, the table of costs shows it."""
    lengths = Lengths([70])
    right, wrong = corrected_by_width(), Predicted(tiny.target("llama"), PassCosts(call=1.0))
    costs, before = (verifications(prices, lengths, 48) for prices in (right, wrong))
    assert costs[1] == pytest.approx(before[1], rel=0.1)
    assert costs[31] == pytest.approx(1.6 * before[31], rel=0.1)


def test_a_plain_step_tells_what_is_dear_by_itself():
    """Else the machine could as well be slower; a drafter that captures nothing takes care that
    there is one.
    """
    assert corrected_by(anchors=1) == pytest.approx(1.4, rel=0.1)
    assert corrected_by(anchors=0) < 1.1


@pytest.mark.parametrize("captures", [False, True])
def test_plain_steps_are_measured_now_and_then(captures, monkeypatch):
    lm = tiny.target("llama")
    seen = []
    prices = Predicted(lm, counted(lm), corrects=True)
    monkeypatch.setattr(prices, "observe", lambda part, *_: seen.append(part))
    inner = (
        SelfDrafter(lm, Guided(min_budget=8), [1] * 3)
        if captures
        else SelfDrafter(lm, Full(), [1] * 3)
    )
    drafter = AdaptiveDraft(inner, prices)
    monkeypatch.setattr(drafter.pace, "_search", lambda *_, **__: Rated(2.0, Draft(3, 1)))
    generate(lm, tiny.prompts(40), drafter, max_new_tokens=48)
    verified = seen.count("captured" if captures else "verify")
    assert verified > DEFAULTS.anchor_after and seen.count("plain") > 1


def rises(costs: list[float]) -> bool:
    return all(a <= b + 1e-9 for a, b in pairwise(costs))


@each_method
def test_every_method_predicts_what_a_draft_costs(method):
    """More than nothing, and no less for deeper drafts."""
    lm = tiny.target("llama")
    drafter = BUILD[method](lm)
    seqs = lm.sequences(tiny.prompts(70, 31), 40, lm.new_cache(2, 256), SAMPLERS["greedy"], SEED)
    with torch.inference_mode():
        for b, prompt in enumerate(tiny.prompts(70, 31)):
            lm.prefill(prompt[:-1], seqs.cache.row(b))
        drafter.start(seqs)
    found = tabulate(Predicted(lm, counted(lm)), drafter, seqs, levels_of(drafter))
    for costs in found.draft.values():
        assert costs[0] == 0 < costs[1] and rises(costs)
    assert found.verified[0] == 1 and all(
        a <= b + 1e-9 for a, b in zip(found.verified, found.verified[1:], strict=False)
    )


@each_method
def test_every_method_says_how_many_nodes_it_drafts_at_most(method, monkeypatch):
    """And drafts as narrow as it is asked to: a drafter that overlooked the width would be asked
    for it again.
    """
    for shape in ((3, 2), (3, UNBOUNDED)):
        monkeypatch.setattr(Pace, "decide", lambda self, captured, shape=shape: Draft(*shape))
        seen = []

        class Watched(AdaptiveDraft):
            def grow(self, tree, seqs, limits, seen=seen, shape=shape):
                tree = super().grow(tree, seqs, limits)
                inner = self.inner.inner if isinstance(self.inner, AdaptiveDraft) else self.inner
                most = inner.price().nodes(*shape)
                seen.append(
                    (tree.widest, int(tree.depth.max()), (tree.parent >= 0).sum(1).max() - most)
                )
                return tree

        check_lossless(
            lambda t: Watched(BUILD[method](t)), "llama", SAMPLERS["greedy"], ROWS["3 rows"], new=12
        )
        assert (
            max(wide for wide, *_ in seen) <= shape[1] and max(deep for _, deep, _ in seen) <= 3
        ), seen
        if (
            not method.endswith("then reuse") and "suffix" not in method
        ):  # these state what is usual
            assert max(over for *_, over in seen) <= 0, seen


@pytest.mark.each_value
@each_method
@pytest.mark.parametrize("sampler", [pytest.param("greedy", marks=full), "T=1 min-p penalty"])
def test_every_method_is_lossless_whatever_is_chosen(method, sampler, monkeypatch):
    """Depths, widths, steps with and without captures, and ages of views, drawn at random instead
    of chosen by cost.
    """
    draws = torch.Generator().manual_seed(3)

    class Random(AdaptiveDraft):
        def grow(self, tree, seqs, limits):
            age = int(torch.randint(0, 4, (1,), generator=draws))
            self.inner.stay(DEFAULTS.view_ages[age])
            return super().grow(tree, seqs, limits)

    def decide(self: Pace, captured: bool) -> Decision:
        depth, width = torch.randint(0, 6, (2,), generator=draws).tolist()
        if depth == 0:
            return CAPTURE_ONLY
        if depth == 1 or not captured:
            return PLAIN
        return Draft(depth - 1, DEFAULTS.widths[min(width, 4)])

    monkeypatch.setattr(Pace, "decide", decide)
    check_lossless(
        lambda t: Random(BUILD[method](t)), "llama", SAMPLERS[sampler], ROWS["3 rows"], new=32
    )
