"""One tree from a drafter and the text: how it grows, what is learned of its sources, and that
copying leaves the drafter alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.checks import SAMPLERS, check_eos, check_lossless
from support.filled import (
    CHEAP,
    SOME,
    begun,
    check_caught_up,
    check_chances_are_learned,
    check_filled_draft_is_followed,
    check_no_source_is_certain,
    check_sources_are_told_apart,
    growth,
    spelled,
)
from support.listed import BUILD
from support.prices import Stated

from longdraft import InputError, Stats, build, generate, reject, stream
from longdraft.core.capture import Captures
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import Fill, PlainDecoding, SelfDrafter
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance
from longdraft.drafters.adaptive.pace import Pace
from longdraft.drafters.adaptive.prices import CostTable
from longdraft.drafters.fill.calibration import Calibration, Guess
from longdraft.drafters.fill.drafter import FillStep
from longdraft.drafters.fill.filled_rows import FilledRows, cut, guesses_of
from longdraft.drafters.fill.growth import FilledNode, Growth, Prefix, best_prefix
from longdraft.drafters.fill.model_source import ModelSource
from longdraft.drafters.fill.rest import Rest
from longdraft.drafters.fill.shape import best_shape
from longdraft.drafters.kinds import KINDS
from longdraft.drafters.step import speculative_step
from longdraft.engine.generate import prefill

INNER = (
    "vegas tree",
    "sd",
    "longspec",
    "longspec, best paths",
    "eagle3",
    "mtp",
    "medusa",
    "tokenswift",
    "dflash",
    "recycle",
    "triforce",
)
SURE = Guess((1, 0), 0.9)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def made(name: str | None, **options):
    """Builds Fill of this drafter, or of none."""
    prices = Stated(**CHEAP)
    return lambda target: Fill([BUILD[name](target)] if name else [], prices, **options)


# The tree -------------------------------------------------------------------------------------


def test_a_leaf_is_extended_by_what_followed_it_in_the_text():
    """The root's own match says nothing of 3; after it, 4 and 5 followed."""
    nodes = growth([1, 2, 3, 4, 5, 9, 2]).fill([(0, 3)], [SURE], 8, 0.01)
    assert (nodes[1].parent, nodes[1].token) == (0, 3)
    assert (3, 4, 5) in spelled(nodes)


def test_a_leaf_that_the_root_does_not_match_is_extended():
    nodes = growth([1, 2, 3, 4, 9, 8]).fill([(0, 2), (1, 3)], [SURE, SURE], 8, 0.01)
    assert spelled(nodes)[3] == (2, 3, 4)


def test_equal_tokens_below_one_parent_are_one_node():
    tree = growth([1, 2, 3, 4, 1, 2])
    nodes = tree.fill([(0, 3), (1, 7)], [SURE, SURE], 8, 0.01)
    paths = spelled(nodes)
    assert len(paths) == len(set(paths))
    sources = [vote.source for vote in nodes[paths.index((3,))].votes]
    assert sources == [tree.drafting, tree.copying]
    assert nodes[1].reach == pytest.approx(0.9)  # of the likelier guess
    assert [v.source for v in nodes[2].votes] == [tree.drafting]
    assert [v.source for v in nodes[paths.index((3, 4))].votes] == [tree.copying]


def test_padding_and_repeated_siblings_keep_their_places():
    nodes = growth([1, 2, 3, 1, 2]).fill([(0, 7), (-2, 0), (0, 7)], [SURE] * 3, 0, 0.01)
    assert [node.token for node in nodes[1:]] == [7, 0, 7]
    assert [bool(node.votes) for node in nodes[1:]] == [True, False, False]
    assert nodes[2].reach == nodes[3].reach == 0


@given(texts, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6))
def test_reach_never_grows_along_a_path(text, given):
    """Children share what their parent has, later nodes are not likelier, and siblings differ."""
    drafted = [(min(parent, i), token) for i, (parent, token) in enumerate(given)]
    nodes = growth(text, depth=5).fill(drafted, [SURE] * len(drafted), 12, 0.01)
    assert [(n.parent, n.token) for n in nodes[1 : len(drafted) + 1]] == drafted
    added = nodes[len(drafted) + 1 :]
    assert [n.reach for n in added] == sorted((n.reach for n in added), reverse=True)
    assert len(added) <= 12 and all(n.reach >= 0.01 and n.votes for n in added)
    depths = [0]
    for i, node in enumerate(nodes[1:], 1):
        assert node.parent < i
        depths.append(depths[node.parent] + 1)
    assert all(depths[i] <= 5 for i in range(len(drafted) + 1, len(nodes)))
    for i, node in enumerate(nodes):
        children = [n for n in nodes[1:] if n.parent == i]
        assert sum(n.reach for n in children) <= node.reach + 1e-9
        tokens = [n.token for n in children if n.votes]
        assert len(tokens) == len(set(tokens))


@given(texts, st.integers(1, 3))
def test_a_level_is_no_wider_than_allowed(text, width):
    drafted = [(0, 0), (1, 1), (2, 0)]
    nodes = growth(text, 6, width).fill(drafted, [SURE] * 3, 20, 0.01)
    counts = Counter(map(len, spelled(nodes)[1:]))
    assert max(counts.values()) <= width


reaches = st.lists(st.floats(0.01, 1), max_size=8).map(lambda row: sorted(row, reverse=True))


@given(st.lists(reaches, min_size=1, max_size=3), st.floats(0.001, 0.5))
def test_the_best_prefix_is_that_of_all(rows, each):
    def rate(n: int) -> float:
        return (1.5 + sum(sum(row[:n]) for row in rows) / len(rows)) / (1 + each * n)

    found = best_prefix(rows, 1.5, lambda n: 1 + each * n, 1e9)
    assert found.rate == pytest.approx(max(rate(n) for n in range(9)))
    assert found.rate == pytest.approx(rate(found.count))
    bounded = best_prefix(rows, 1.5, lambda n: 1 + each * n, 1 + 2.5 * each)
    assert bounded.count <= 2


def priced(each: float, share: float) -> Pace:
    """A chain of up to 4 levels costs `each` per level; a node is accepted with chance `share`."""
    levels = {1: [1.0] * 4}
    draft = {1: [each * depth for depth in range(5)]}
    table = CostTable(1.0, [1], levels, draft, [1 + 0.01 * n for n in range(60)], sizes={1: 1})
    return Pace(LearnedAcceptance(share), Budget(), table)


def test_a_draft_is_asked_for_where_it_adds_to_what_is_copied():
    """Beside copied nodes that reach as deep, the same draft adds nothing."""
    pace = priced(0.2, 0.8)
    nothing = Prefix(0, 1.0, 1.0)
    best = best_shape(pace, nothing, {}, 1.0, 9, 9.0)
    assert best and best.draft.depth >= 2 and best.rate > 1.2
    assert 0 < best.gain < best.rate * 4
    deep = {depth: 0.9**depth for depth in range(1, 9)}
    tokens = 1 + sum(deep.values())
    assert best_shape(pace, Prefix(8, tokens, tokens / 1.08), deep, 1.08, 9, 9.0) is None
    short = best_shape(pace, nothing, {}, 1.0, 1, 9.0)
    assert short and short.draft.depth == 1
    assert best_shape(pace, nothing, {}, 1.0, 9, 1.1) is None


# What is learned ------------------------------------------------------------------------------


def test_chances_are_learned():
    check_chances_are_learned()


def test_a_source_that_was_right_may_be_refused():
    check_no_source_is_certain()


def test_what_was_seen_fades_toward_the_prior():
    source = Calibration()
    for _ in range(20):
        source.add(SURE, False)
    seen = source.chance(SURE)
    source.fade(0.5)
    halved = source.chance(SURE)
    source.fade(0.0)
    assert seen < halved < source.chance(SURE) == pytest.approx(SURE.prior)


def test_sources_are_told_apart():
    check_sources_are_told_apart()


def test_only_children_of_accepted_nodes_are_evidence():
    """Node 1 was refused, so nothing is known of its child; node 3 was cut, so it was not tried."""
    tree = growth([9, 8])
    rows = FilledRows(
        [tree.fill([(0, 1), (1, 2), (0, 3), (0, 4)], [SURE, SURE, SURE, SURE], 0, 0.01)], [True]
    )
    added = []
    tree.drafting.add = lambda guess, accepted: added.append(accepted)
    verified = rows.plant(Tree.root(torch.tensor([8])))
    verified.parent[0, 3] = -2
    rows.observe(verified, [[0, 4]])
    assert added == [False, True]
    FilledRows(rows.nodes, [False]).observe(verified, [[0, 4]])
    assert len(added) == 2


def test_guesses_are_counted_by_depth_and_rank():
    root = Tree.root(torch.tensor([5]))
    tree = root.plant([[(0, 1), (0, 2), (1, 3), (1, 4)]])
    assert [g.bucket for g in guesses_of(tree, 0.6)[0]] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [g.prior for g in guesses_of(tree, 0.6)[0]] == pytest.approx([0.6, 0.2, 0.6, 0.2])


def test_a_verdict_on_the_first_nodes_ends_where_its_path_leaves_them():
    path = torch.tensor([[0, 1, 5, 6], [0, 2, 2, 2]])
    verdict = Verdict(path, torch.tensor([4, 2]), path)
    assert cut(verdict, 3).count.tolist() == [2, 2]


# Decoding -------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("sampler", SOME.values(), ids=SOME)
@pytest.mark.parametrize("model", ["llama-loops", "llama"])
def test_it_is_lossless(name, sampler, model):
    """With rows of other lengths; on one of the models the text is copied, too."""
    check_lossless(made(name), model, sampler, (70, 31, 90), 48)


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("name", [None, "eagle3", "longspec", "sd"])
def test_rows_end_at_different_times(name):
    check_eos(made(name))
    lm = tiny.target("llama-loops")
    prompts = tiny.prompts(70, 31, 9)
    plain = generate(lm, prompts, max_new_tokens=48)
    end = plain[1][10]
    stats = Stats()
    found = generate(lm, prompts, made(name)(lm), max_new_tokens=48, eos=(end,), stats=stats)
    want = [row[: row.index(end) + 1] if end in row else row for row in plain]
    assert found == want
    assert len({len(row) for row in found}) > 1 and stats.mean_acceptance_length > 1


def test_without_an_inner_drafter_it_copies():
    stats = check_lossless(made(None), "llama-loops", SAMPLERS["greedy"], (70,), 64)
    assert stats.mean_acceptance_length > 4


@torch.inference_mode()
def test_a_copied_draft_makes_no_pass_of_the_inner_drafter():
    """As long as a match holds, tens of tokens are drafted from the text alone."""
    lm = tiny.target("llama-loops")
    fill = made("longspec")(lm)
    seqs = begun(fill, "llama-loops", tiny.prompts(70), 200)
    asked = []
    inner = fill.now.drafter
    grow = inner.grow
    inner.grow = lambda *given: asked.append(True) or grow(*given)
    deepest = 0
    copied = 0
    while not seqs.done.all():
        before = len(asked)
        tree = speculative_step(lm, fill, seqs).tree
        assert (len(asked) > before) == (fill._first > 1)
        if len(asked) == before and tree.size > 1:
            copied += 1
            deepest = max(deepest, int(tree.depth.max()))
            assert {fill.proposed_by(i) for i in range(1, tree.size)} == {"n-grams"}
            assert fill.view_read() is None
    assert asked and copied > 2 and deepest >= 16


STATEFUL = ("medusa", "sd", "longspec", "eagle2", "eagle3", "mtp", "dflash", "full view")


@pytest.mark.parametrize("name", STATEFUL)
def test_a_path_may_leave_the_inner_drafters_nodes(name):
    check_filled_draft_is_followed(name)


@pytest.mark.parametrize("name", STATEFUL)
def test_after_copying_the_inner_drafter_drafts_as_if_never_idle(name):
    check_caught_up(name)


@torch.inference_mode()
def test_nodes_have_the_names_of_their_proposers():
    lm = tiny.target("llama-loops")
    fill = made("longspec")(lm)
    seqs = begun(fill, "llama-loops", tiny.prompts(70), 60)
    tree = speculative_step(lm, fill, seqs).tree
    while not 1 < fill._first < tree.size:
        assert not bool(seqs.done.any()), "no draft was filled"
        tree = speculative_step(lm, fill, seqs).tree
    names = [fill.proposed_by(i) for i in range(1, tree.size)]
    drafted = fill._first - 1
    assert names == ["block"] * drafted + ["n-grams"] * (len(names) - drafted)


def test_accepted_drafts_are_counted_by_source():
    lm = tiny.target("llama-loops")
    stats = Stats()
    generate(lm, tiny.prompts(70, 31), made("longspec")(lm), max_new_tokens=100, stats=stats)
    assert stats.sources.keys() == {"block", "n-grams"}
    assert stats.sources.total() == sum(stats.accepted)


def test_an_inner_drafter_that_is_wrong_is_asked_less():
    """Of random weights no draft is accepted."""
    lm = tiny.target("llama")
    fill = Fill([build("longspec", lm, KINDS["glide"].random(lm, 3))], Stated(each=0.1))
    generate(lm, tiny.prompts(70), fill, max_new_tokens=100)
    assert 0 < fill.now.asked < 15


def test_a_view_is_not_chosen_while_nothing_is_drafted_under_it():
    lm = tiny.target("llama")
    fill = Fill([BUILD["vegas"](lm)], Stated(each=9.0, look=0.5))
    stats = Stats()
    generate(lm, tiny.prompts(70), fill, max_new_tokens=24, stats=stats)
    assert not fill.now.asked and not fill._feeds
    assert fill.captures().rows is None


@pytest.mark.parametrize(("once", "asked"), [(30.0, False), (0.5, True)])
def test_a_prompt_is_read_only_where_its_drafts_make_up_for_it(once, asked):
    lm = tiny.target("llama")
    fill = Fill([BUILD["sd"](lm)], Stated(each=0.05, once=once))
    generate(lm, tiny.prompts(70), fill, max_new_tokens=24, sampler=SAMPLERS["T=1"])
    assert (fill.now.asked > 0) is asked


def test_losses_are_bounded():
    """Whatever the target accepts, drafts cost no more than the budget allows."""
    lm = tiny.target("llama")
    prices = Stated(each=0.3, node=0.1, look=0.2)
    fill = Fill([BUILD["vegas"](lm)], prices)
    fill.now.pace.acceptance.usual = 0.9
    budget = fill.budget
    owe = budget.owe
    left = []
    budget.owe = lambda cost, tokens: owe(cost, tokens) or left.append(budget.slack)
    generate(lm, tiny.prompts(70), fill, max_new_tokens=96, sampler=SAMPLERS["T=1"])
    assert fill.now.asked and min(left) > -prices.look  # a step that only captures is not refused


def steps_of_rest(rest: Rest) -> int:
    """The steps of a rest in which no draft is considered."""
    count = 0
    while rest.passes() or rest.looks():
        count += 1
    return count


def test_rests_double_up_to_a_share_of_the_time():
    rest = Rest()
    rests = []
    for _ in range(7):
        rest.begin(0.12, 0.0, 0)  # 20 plain steps at a share of 0.006
        rests.append(steps_of_rest(rest))
    assert rests == [0, 1, 3, 7, 15, 19, 19]
    rest.begin(0.12, 0.0, 0)
    rest.end()
    assert not steps_of_rest(rest)
    rest.begin(0.0119, 0.0, 0)  # considering drafts costs too little for any rest
    rest.begin(0.0119, 0.0, 0)
    assert not steps_of_rest(rest)


@pytest.mark.parametrize(("looking", "apart"), [(0.0, 1), (0.004, 1), (0.0041, 2), (0.027, 7)])
def test_the_text_is_looked_at_for_a_share_of_the_time(looking, apart):
    rest = Rest(refused=5)
    rest.begin(0.4, looking, 3)
    looks = []
    while rest.left:
        looks.append(not rest.passes() and rest.looks())
    assert looks == [left % apart == 0 for left in range(31, 0, -1)]
    assert rest.count() == 31 - sum(looks)
    assert not rest.count()


def steps_in_a_long_rest(level: int) -> int:
    """The steps of a text that begins to repeat itself when a rest has just begun, which matches of
    this level have not ended.
    """
    fill = Fill([], Stated(each=0.02, node=0.01))
    stats = Stats()
    steps = stream(tiny.target("llama-loops"), tiny.prompts(70), fill, 64, stats=stats)
    next(steps)
    fill._rest.left = 1000
    fill._rest.level = level
    assert list(steps)
    return stats.steps


def test_a_longer_match_ends_the_rest():
    assert steps_in_a_long_rest(level=1) < 50
    assert steps_in_a_long_rest(level=99) == 63  # planted: no match is longer


@torch.inference_mode()
def test_a_copy_of_which_nothing_is_accepted_does_not_end_the_rest():
    fill = Fill([], Stated(each=0.02, node=0.01))
    target = tiny.target("llama")
    seqs = prefill(target, tiny.prompts(70), 64, SAMPLERS["greedy"], 0)
    fill.start(seqs)
    speculative_step(target, fill, seqs, draft=False)
    for accepted, refused in ((1, 4), (2, 0)):
        fill._rest.refused = 4
        fill._wanted = False
        rows = FilledRows([[FilledNode(-1, -1, 1.0, ()), FilledNode(0, 5, 0.5, ())]], [True])
        fill._step = FillStep(rows, None, None, 0.0)
        fill.now.table(seqs)
        tree = rows.plant(Tree.root(seqs.last))
        verdict = Verdict(
            torch.tensor([[0, 1]]), torch.tensor([accepted]), torch.zeros(1, 2).long()
        )
        fill._learn(fill._step, seqs, tree, verdict, Captures())
        assert fill._rest.refused == refused


@pytest.mark.parametrize(("each", "few"), [(0.05, True), (0.001, False)])
def test_a_draft_is_seldom_considered_where_none_pays(each, few, monkeypatch):
    """Where the host's work is a large part of a step; and the output stays that of the target."""
    considered = Counter[bool]()
    fill = Growth.fill
    monkeypatch.setattr(
        Growth, "fill", lambda self, *args: considered.update([True]) or fill(self, *args)
    )
    prices = Stated(each=each, node=9.0)
    check_lossless(lambda t: Fill([], prices), "llama", SAMPLERS["T=1"], (70,), 96)
    assert considered[True] < 20 if few else considered[True] > 80


def test_a_draft_ends_the_rest():
    """A text that begins to repeat itself is copied soon, though nothing paid before."""
    lm = tiny.target("llama-loops")
    fill = Fill([], Stated(each=0.02, node=0.01))
    fill._rest.refused = 5
    stats = Stats()
    generate(lm, tiny.prompts(70), fill, max_new_tokens=64, stats=stats)
    assert fill._rest.refused <= 1  # the last step has no room for a draft
    assert stats.steps < 50


def test_reject_is_refused():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="draft probabilities"):
        generate(lm, tiny.prompts(20), made("vegas tree")(lm), verify=reject)


# The named method -----------------------------------------------------------------------------


def test_the_method_fills_a_trained_drafter_if_there_is_one():
    lm = tiny.target("llama-torch")
    alone = build("fill", lm, nodes=20)
    assert isinstance(alone.now.drafter, SelfDrafter) and alone.most == 20
    glide = KINDS["glide"].random(lm, 3)
    eagle = KINDS["eagle3"].random(lm, 3)
    assert build("fill", lm, {"glide": glide}).now.drafter.name == "block"
    both = build("fill", lm, {"glide": glide, "eagle3": eagle})
    assert type(both.now.drafter).__name__ == "Eagle" and len(both.sources) == 1
    rows = tiny.prompts(70, 31)
    assert generate(lm, rows, alone, max_new_tokens=24) == generate(lm, rows, max_new_tokens=24)


def test_a_drafter_that_never_drafts_is_not_asked():
    assert isinstance(Fill().now.drafter, PlainDecoding) and Fill().max_depth == 48
    assert isinstance(Fill().copying, Calibration)


def check_captures_cost_no_more_than_drafts_save() -> None:
    """A drafter that is seldom worth asking beside copies is given no dear captures, until it is
    worth asking again.
    """
    source = Fill([BUILD["vegas"](tiny.target("llama"))], Stated(**CHEAP)).now
    source.pace = priced(0.05, 0.9)
    table = replace(source.pace.table, look=0.4)
    assert source.is_wanted(table)
    source.expect(1.0)
    assert source.is_wanted(table)
    for _ in range(10):
        source.expect(0.0)
    assert not source.is_wanted(table)
    assert source.is_wanted(replace(table, look=0.0))
    for _ in range(10):
        source.expect(1.0)
    assert source.is_wanted(table)


def test_captures_cost_no_more_than_drafts_save():
    check_captures_cost_no_more_than_drafts_save()


def test_captures_that_are_always_made_are_noticed(monkeypatch):
    monkeypatch.setattr(ModelSource, "expect", lambda self, gain: None)
    with pytest.raises(AssertionError):
        check_captures_cost_no_more_than_drafts_save()
