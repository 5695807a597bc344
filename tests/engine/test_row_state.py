"""What a drafter has learned about a row is kept when other rows enter and leave."""

from __future__ import annotations

from collections import Counter

import pytest
import test_session
import torch
from support import tiny
from support.listed import BUILD, FROM_TEXT, FULL_BUDGET, tier
from support.prices import Stated
from support.sessions import REQUESTS, Ends, finish, others, request, session

from longdraft import AdaptiveDraft, match
from longdraft.drafters import Drafter, Lookup, SmallModelDrafter
from longdraft.drafters.adaptive.decision import Draft, Undecided
from longdraft.views import Guided

LONG = 48
BUSY = {0: [(31, 3), (70, LONG), (20, 9)], 2: [(50, 1)], 4: [(9, 6), (60, 2)], 7: [(33, 5)]}
ENTRIES = {step for step in BUSY if step}  # after which all rows take a plain step


def steps_of(drafter: Drafter, busy: bool, model: str = "llama") -> list[list[int]]:
    """Tokens by step of the long request: with others that come and go, or alone but with the same
    plain steps.
    """
    s = session(model, drafter, 4, "greedy")
    chunks = []
    watched = None
    step = 0
    while step == 0 or s.running:
        for n, (length, new) in enumerate(BUSY.get(step, ())):
            if busy or new == LONG:
                id = s.submit(tiny.prompts(length, seed=10 * step + n)[0], new, eos=())
                watched = id if new == LONG else watched
        if step in ENTRIES:
            s._captured = False
        chunks += [e.tokens for e in s.step() if e.id == watched]
        step += 1
    return chunks


OTHERWISE = {
    "specextend": "a row that enters makes every row choose its chunks anew",
    "specextend by itself": "a row that enters makes every row choose its chunks anew",
    "suffix over texts": "a row drafts from the outputs of rows that have left",
    "auto": "which drafter it uses depends on what all rows accept",
    "fill": "what it drafts depends on what all rows accept",
    "fill of vegas": "what it drafts depends on what all rows accept",
}


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [pytest.param(m, id=m, marks=tier(m)) for m in BUILD if m not in OTHERWISE]
)
def test_what_a_drafter_knows_of_a_row_survives_its_neighbors(method):
    """Each step accepts the same tokens as without them: no state is lost or moved to another
    row.
    """
    lm = tiny.target("llama-loops" if method in FROM_TEXT else "llama")
    alone, beside = (steps_of(BUILD[method](lm), busy, lm.name) for busy in (False, True))
    assert beside == alone
    assert max(map(len, alone)) > 1


@pytest.mark.parametrize("method", FULL_BUDGET)
def test_acceptance_stays_at_its_maximum_while_rows_come_and_go(method):
    """A draft under a view of everything is the target's own, so every step accepts all of it in
    every row.
    """
    drafted = Counter()

    def verify(tree, logits, sampler, rows):
        verdict = match(tree, logits, sampler, rows)
        drafted[tree.size > 1] += 1
        if method != "all but one row's":  # its longer rows do not see everything
            assert verdict.count.tolist() == [int(tree.depth.max()) + 1] * len(rows.length)
        return verdict

    s = session("llama", FULL_BUDGET[method](tiny.target("llama")), verify=verify)
    entered = 0
    ends = Ends()
    rest = list(enumerate([(70, 60), (31, 9), (9, 25), (50, 33), (1, 17), (44, 48), (12, 6)]))
    while rest or s.running:
        if rest and s.running < 3:
            i, (length, new) = rest.pop(0)
            s.submit(tiny.prompts(length, seed=i)[0], new, seed=i, eos=())
        entered += bool(s.waiting)
        ends.take(s.step())
    assert not ends.errors and sum(map(len, ends.texts.values())) == 198
    assert drafted[False] <= entered + 1  # one at most had no room for a draft
    assert drafted[True] >= 12


def count_reads(monkeypatch) -> list[int]:
    """Tokens that small models read row by row."""
    read = []
    good = SmallModelDrafter._read

    def counted(self, seqs, b):
        held = int(self.cache.length[b])
        good(self, seqs, b)
        read.append(int(self.cache.length[b]) - held)

    monkeypatch.setattr(SmallModelDrafter, "_read", counted)
    return read


@pytest.mark.parametrize("method", ["sd", "triforce", "budgetdraft tree, then lookup"])
def test_a_small_model_reads_each_prompt_once(method, monkeypatch):
    drafter = BUILD[method](tiny.target("llama"))
    read = count_reads(monkeypatch)
    s = session("llama", drafter)
    for i in range(len(REQUESTS)):
        s.submit(**request("llama", i)[0])
    finish(s, Ends())
    assert 0 < sum(read) <= sum(n for n, _, _ in REQUESTS)


def test_what_adaptive_drafting_has_learned_survives():
    """Rows that enter or leave change neither what was accepted nor what drafting may lose; each
    entry is one step without a draft.
    """
    drafter = AdaptiveDraft(BUILD["vegas"](tiny.target("llama")), Stated())
    s = session("llama", drafter)
    ends = Ends()
    s.submit(tiny.prompts(40)[0], 60, eos=())
    for _ in range(4):
        ends.take(s.step())
    acceptance = drafter.pace.acceptance
    budget = drafter.pace.budget
    seen = acceptance.asked
    assert seen > 2 and isinstance(drafter.step.decision, Draft)
    assert drafter.step.decision.depth > 1
    for _ in range(2):
        s.submit(tiny.prompts(30)[0], 12, eos=())
        decisions = []
        while s.running == 2 or s.waiting:
            ends.take(s.step())
            decisions.append(drafter.step.decision)
        first, *others, last = decisions
        assert isinstance(first, Undecided) and all(isinstance(d, Draft) for d in others)
        assert not isinstance(last, Undecided)
        assert (
            drafter.pace.acceptance is acceptance
            and drafter.pace.budget is budget
            and acceptance.asked > seen
        )
    while s.running:
        ends.take(s.step())
    assert sorted(map(len, ends.texts.values())) == [12, 12, 60]


class Plain(Drafter):
    """A drafter as simple as a user's may be: it does not handle rows that enter and leave."""

    def __init__(self):
        self.seen: list[int] | None = None
        self.starts = 0

    def start(self, seqs):
        self.seen = None
        self.starts = self.starts + 1

    def update(self, seqs, tree, verdict, captured):
        self.seen = seqs.last.tolist()

    def grow(self, tree, seqs, limits):
        assert self.seen == seqs.last.tolist(), "a step of these very rows comes first"
        return tree.grow(torch.zeros_like(tree.tokens), tree.tokens) if limits.depth else tree


def test_a_drafter_without_enter_and_leave_starts_anew():
    drafter = Plain()
    s = session("llama", drafter)
    for i in range(len(REQUESTS)):
        s.submit(**request("llama", i)[0])
    others(finish(s, Ends()), {})
    assert drafter.starts > len(REQUESTS)


def keys_stay(mp) -> None:
    """A row's keys and values in a small model's cache do not move with the row."""
    leave = SmallModelDrafter.leave

    def wrong(self, seqs, row):
        cache = self._whole_cache
        last = len(seqs.length)
        saved = {n: [x[row].clone() for x in buffers] for n, buffers in cache._store.layers.items()}
        leave(self, seqs, row)
        for n, buffers in saved.items():
            for x, old in zip(cache._store.layers[n], buffers, strict=True):
                x[row] = old if row != last else x[row]

    mp.setattr(SmallModelDrafter, "leave", wrong)


def slots_swapped(mp) -> None:
    """The first two rows swap the slots that their views select."""

    def wrong(self, model, tokens, cache, row):
        self._view = self._view and self._view.without(row)
        if self._view is not None and len(cache.length) > 1:
            self._view.indices[:, [0, 1]] = self._view.indices[:, [1, 0]]

    mp.setattr(Guided, "leave", wrong)


def rows_shifted(mp) -> None:
    """Later rows move up when a row leaves, though only the last one takes its place."""
    mp.setattr(Lookup, "leave", lambda self, seqs, row: self.rows.pop(row))


def views_forgotten(mp) -> None:
    """When a row leaves, all rows start anew."""
    mp.setattr(
        Guided, "leave", lambda self, model, tokens, cache, row: self.start(model, tokens, cache)
    )


@pytest.mark.parametrize(
    "fault,method",
    [
        (keys_stay, "budgetdraft tree"),
        (slots_swapped, "vegas"),
        (rows_shifted, "lookup"),
        (views_forgotten, "vegas"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_state_of_the_wrong_row_is_harmless_and_caught(fault, method, monkeypatch):
    """The planted faults: the output is the same, its steps are not."""
    fault(monkeypatch)
    test_session.test_rows_that_come_and_go_say_what_they_say_alone("llama", method)
    with pytest.raises(AssertionError):
        test_what_a_drafter_knows_of_a_row_survives_its_neighbors(method)
