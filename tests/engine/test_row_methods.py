"""Requests of one session that choose their methods: equal texts, drafts where they are asked."""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.listed import BUILD, each_method_on, exact
from support.prices import Stated
from support.sessions import REQUESTS, Ends, finish, request, session

from longdraft import AdaptiveDraft, InputError, Session
from longdraft.core.tree import PAD, Tree
from longdraft.drafters import Lookup, PlainDecoding

# of each request: its method, and how deep its drafts may be
CHOICES = [("", 99), ("", 0), ("other", 3), ("", 2), ("other", 99), ("", 0), ("", 99)]


def run(s: Session, model: str, sampler: str, choices=CHOICES) -> tuple[Ends, dict[int, int]]:
    """How the requests end, and the depth of each one's deepest draft, by its place."""
    ends = Ends()
    ids = []
    deepest = dict.fromkeys(range(len(choices)), 0)

    def step() -> None:
        events = s.step()
        ends.take(events)
        for event in events:
            place = ids.index(event.id)
            deepest[place] = max(deepest[place], event.drafted)

    for i, (method, most) in enumerate(choices):
        ids.append(s.submit(**request(model, i, sampler)[0], method=method, deepest=most))
        if i > 1:
            step()
    while s.running or s.waiting:
        step()
    ends.texts = {ids.index(id): text for id, text in ends.texts.items()}
    return ends, deepest


@pytest.mark.each_value
@pytest.mark.parametrize("sampler", ["greedy", "T=1"])
@each_method_on("llama", "qwen3.5")
def test_rows_of_different_methods_say_what_they_say_alone(model, method, sampler):
    lm = tiny.target(exact(model))
    s = session(model, BUILD[method](lm), sampler=sampler, others={"other": Lookup(1, 4)})
    ends, deepest = run(s, model, sampler)
    for i in range(len(REQUESTS)):
        assert ends.texts[i] == request(model, i, sampler)[1], f"request {i}"
        assert deepest[i] <= CHOICES[i][1], f"request {i}"


def test_rows_are_drafted_for_beside_rows_that_are_not():
    """The bound is each row's own: a row of unlimited drafts keeps them beside a plain row."""
    s = session("llama", BUILD["vegas"](tiny.target("llama")), 4, "greedy")
    ids = [
        s.submit(tiny.prompts(30, seed=i)[0], 20, eos=(), deepest=d) for i, d in enumerate((99, 0))
    ]
    drafted = {id: set() for id in ids}
    while s.running or s.waiting:
        for event in s.step():
            drafted[event.id].add(event.drafted)
    assert max(drafted[ids[0]]) == 4 and drafted[ids[1]] == {0}


def test_a_bound_that_is_not_kept_is_noticed(monkeypatch):
    monkeypatch.setattr(Tree, "within", lambda tree, deepest: tree)
    s = session("llama", BUILD["vegas"](tiny.target("llama")), 4, "greedy")
    _, deepest = run(s, "llama", "greedy", [("", 99), ("", 0), ("", 2)])
    assert deepest[1] > 0 and deepest[2] > 2


def test_another_method_waits_and_a_plain_request_does_not():
    lm = tiny.target("llama")
    s = session("llama", BUILD["vegas"](lm), 4, "greedy", others={"other": Lookup()})
    ends = Ends()
    prompts = tiny.prompts(9, 9, 9, 9)
    first = s.submit(prompts[0], 12, eos=())
    s.submit(prompts[1], 12, eos=(), deepest=0)
    ends.take(s.step())
    assert s.running == 2
    other = s.submit(prompts[2], 4, eos=(), method="other")
    behind = s.submit(prompts[3], 2, eos=(), deepest=0)
    while first not in ends.how:
        assert s.waiting == 2
        ends.take(s.step())
    finish(s, ends)
    assert next(iter(ends.how)) == first and {other, behind} < set(ends.how)


def test_a_session_that_only_decodes_plainly_starts_no_drafter(monkeypatch):
    drafter = BUILD["sd"](tiny.target("llama"))
    monkeypatch.setattr(drafter, "start", None)
    s = session("llama", drafter, sampler="greedy")
    asked, text = request("llama", 0, "greedy")
    id = s.submit(**asked, deepest=0)
    assert finish(s, Ends()).texts[id] == text


def test_plain_rows_that_remain_cost_no_drafter(monkeypatch):
    lm = tiny.target("llama")
    drafter = BUILD["vegas"](lm)
    s = session("llama", drafter, sampler="greedy")
    short = s.submit(tiny.prompts(9)[0], 3, eos=())
    s.submit(tiny.prompts(9)[0], 30, eos=(), deepest=0)
    ends = Ends()
    while short not in ends.how:
        ends.take(s.step())
    monkeypatch.setattr(drafter, "grow", None)
    finish(s, ends)
    assert set(ends.how.values()) == {"length"}


def test_unknown_methods_are_refused():
    with pytest.raises(InputError, match="no drafter 'sd'"):
        session("llama").submit([1], method="sd")


def test_a_plain_method_may_be_named_too():
    s = session("llama", Lookup(), sampler="greedy", others={"plain": PlainDecoding()})
    asked, text = request("llama", 1, "greedy")
    id = s.submit(**asked, method="plain")
    assert finish(s, Ends()).texts[id] == text


@pytest.mark.parametrize(("bound", "rows"), [(99, 2), (0, 1), (1, 1)])
def test_a_draft_that_was_cut_does_not_count_as_refused(bound, rows):
    """Acceptance is learned from rows that could take the whole draft."""
    drafter = AdaptiveDraft(BUILD["vegas"](tiny.target("llama")), Stated())
    learned = drafter.pace.acceptance
    add = learned.add
    counted = set()

    def watched(asked, width, nodes, ranks, kept=1.0):
        if asked > 1:
            counted.add(len(ranks))
        add(asked, width, nodes, ranks, kept)

    learned.add = watched
    s = session("llama", drafter, 4, "greedy")
    for deepest in (99, bound):
        s.submit(tiny.prompts(30)[0], 20, eos=(), deepest=deepest)
    finish(s, Ends())
    assert max(counted) == rows


def test_a_tree_within_bounds_has_the_same_indices():
    pairs = [[(0, 5), (0, 6), (1, 7), (3, 8)], [(0, 9), (1, 4)]]
    tree = Tree.root(torch.tensor([1, 2])).plant(pairs)
    cut = tree.within([1, 0])
    assert cut.parent.tolist() == [[-1, 0, 0, PAD, PAD], [-1] + [PAD] * 4]
    assert cut.depth.tolist() == [[0, 1, 1, 0, 0], [0] * 5]
    assert cut.mask[0].tolist() == [
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, False, True, False, False],
        [False, False, False, True, False],
        [False, False, False, False, True],
    ]
    assert tree.within([9, 2]) is tree
