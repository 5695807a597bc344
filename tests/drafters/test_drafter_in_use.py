"""Several model drafters of one tree: which of them drafts, what all of them may lose, and that one
that takes over has missed nothing.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED, check_lossless
from support.filled import BY_NAME, CHEAP, SOME, begun, compare_with_twin
from support.listed import BUILD
from support.prices import Stated
from support.prophets import NEW, Prophet, decode, text

from longdraft import generate
from longdraft.drafters import Fill
from longdraft.drafters.fill.drafter_in_use import DrafterInUse
from longdraft.drafters.step import speculative_step
from longdraft.models.lm import LM

STATEFUL = ("medusa", "sd", "longspec", "eagle2", "eagle3", "mtp", "dflash", "vegas tree")


def without_text(drafters, prices: Stated) -> Fill:
    """Fill, but nothing is copied."""
    fill = Fill(drafters, prices)
    fill.text.proposals = lambda b, match: []
    return fill


def test_the_drafter_that_promises_most_is_used_from_the_first_step():
    prophets = [Prophet([text()], 7, lambda n: 7, usual) for usual in (0.5, 0.9, 0.7)]
    fill = without_text(prophets, Stated(0.1))
    decode(fill)
    assert fill.now.drafter is prophets[1] and prophets[1].steps[0] == 1
    assert not prophets[0].depths and not prophets[2].depths


def test_what_is_refused_is_left_for_what_is_right():
    """Three prophets: the first promises most and is wrong, the others are right once and
    always.
    """
    rights = (0, 1, 7)
    usual = (0.9, 0.8, 0.7)
    prophets = [
        Prophet([text()], 7, lambda n, right=right: right, u)
        for right, u in zip(rights, usual, strict=True)
    ]
    fill = without_text(prophets, Stated(0.1))
    stats = decode(fill)
    assert fill.now.drafter is prophets[2] and prophets[2].depths[-3] == 7
    assert len(prophets[0].depths) < 12 and len(prophets[1].depths) < 60 and stats.steps < 0.5 * NEW


def test_a_refused_drafter_gets_another_chance():
    """The first is wrong for its first drafts, then right; the second is never right."""
    first = Prophet([text()], 7, lambda n: 0 if n < 4 else 7, 0.9)
    fill = without_text([first, Prophet([text()], 7, lambda n: 0, 0.8)], Stated(0.1))
    assert decode(fill).steps < 0.8 * NEW and fill.now.drafter is first


@pytest.mark.parametrize(("new", "most"), [(96, 1.04), (440, 1.02)])
def test_all_drafters_together_lose_no_more_than_one(new, most):
    prophets = [Prophet([text(new)], 7, lambda n: 0, usual) for usual in (0.9, 0.8, 0.7, 0.6)]
    prices = Stated(0.3)
    stats = decode(without_text(prophets, prices), new)
    lost = sum((prices.each + prices.node) * depth for p in prophets for depth in p.depths)
    assert (stats.steps + 1 + lost) / new <= most and sum(bool(p.depths) for p in prophets) > 1


def test_a_debt_that_is_forgotten_is_caught(monkeypatch):
    """The planted fault: whoever takes over may lose as much as one alone."""
    step = DrafterInUse.step

    def forgetful(self, seqs, wanted):
        taken = step(self, seqs, wanted)
        if taken:
            self.now.pace.budget.debt = 0.0
        return taken

    monkeypatch.setattr(DrafterInUse, "step", forgetful)
    with pytest.raises(AssertionError):
        test_all_drafters_together_lose_no_more_than_one(96, 1.04)


def in_turn(monkeypatch, every: int) -> None:
    """Another drafter takes over every few steps."""

    def step(self, seqs, wanted):
        self.steps += 1
        if self.steps % every:
            return False
        self.now = self.sources[(self.sources.index(self.now) + 1) % len(self.sources)]
        return True

    monkeypatch.setattr(DrafterInUse, "step", step)


@torch.inference_mode()
def check_takes_over(name: str) -> None:
    """After steps of another drafter it drafts as one that has seen every token."""
    target = tiny.target("llama-loops")
    fill = without_text([BY_NAME["recycle"](target), BY_NAME[name](target)], Stated(**CHEAP))
    seqs = begun(fill, "llama-loops", tiny.prompts(70), 120)
    first, second = fill.sources
    fill.use.now = first
    second.fed = False
    while not (second.fed and first.asked):
        speculative_step(target, fill, seqs)
    assert fill.now is second and not second.asked and not bool(seqs.done.any())
    compare_with_twin(second.drafter, name, seqs)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_drafter_that_takes_over_has_missed_nothing(name, monkeypatch):
    in_turn(monkeypatch, 4)
    check_takes_over(name)


def test_a_drafter_that_is_asked_before_it_was_given_captures_is_caught(monkeypatch):
    """The planted fault: it drafts in the very step in which it takes over."""
    in_turn(monkeypatch, 4)
    hand_over = Fill._hand_over

    def hasty(self, seqs):
        hand_over(self, seqs)
        self.now.fed = True

    monkeypatch.setattr(Fill, "_hand_over", hasty)
    with pytest.raises(AssertionError):
        check_takes_over("medusa")


def check_drafts_are_told_apart() -> None:
    """Two drafters that are always right, in turn: what each drafted is accepted as its own."""
    prophets = [Prophet([text()], 7, lambda n: 7) for _ in range(2)]
    for prophet, name in zip(prophets, "ab", strict=True):
        prophet.name = name
    stats = decode(without_text(prophets, Stated(**CHEAP)))
    for prophet in prophets:
        drafted = sum(prophet.depths)
        assert 7 < drafted - 7 <= stats.sources[prophet.name] <= drafted
    assert stats.sources.total() == sum(stats.accepted)


def test_accepted_drafts_belong_to_who_drafted_them(monkeypatch):
    in_turn(monkeypatch, 3)
    check_drafts_are_told_apart()


def test_drafts_of_another_drafter_are_noticed(monkeypatch):
    """The planted fault: whoever has just taken over gets what was accepted before."""
    in_turn(monkeypatch, 3)
    monkeypatch.setattr(Fill, "proposed_by", lambda self, node: self.now.drafter.name)
    with pytest.raises(AssertionError):
        check_drafts_are_told_apart()


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("sampler", SOME.values(), ids=SOME)
@pytest.mark.parametrize("model", ["llama-loops", "llama"])
def test_it_is_lossless_whoever_drafts(sampler, model, monkeypatch):
    """With rows of other lengths."""
    in_turn(monkeypatch, 3)
    names = ("vegas tree", "longspec", "eagle3", "mtp", "sd", "triforce")
    check_lossless(
        lambda t: Fill([BUILD[name](t) for name in names], Stated(**CHEAP)),
        model,
        sampler,
        (70, 31, 90),
        64,
    )


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 64, 128, 512, pytest.param(3000, marks=pytest.mark.full)])
def test_it_is_lossless_after_prompts_of_any_length(length, monkeypatch):
    in_turn(monkeypatch, 3)
    lm = LM(tiny.stock("llama", max_position_embeddings=4096))
    fill = Fill([BUILD[name](lm) for name in ("vegas", "longspec", "sd")], Stated(**CHEAP))
    options = {"max_new_tokens": 48, "sampler": SAMPLERS["T=1"], "seed": SEED}
    prompts = tiny.prompts(length)
    assert generate(lm, prompts, fill, **options) == generate(lm, prompts, **options)
    again = tiny.prompts(length + 7)  # a second text, with what was learned
    assert generate(lm, again, fill, **options) == generate(lm, again, **options)


def test_the_sampler_is_that_of_the_rows():
    """What is usual for a drafter depends on it."""
    prophet = Prophet([text()], 7, lambda n: 7)
    prophet.usual = (0.9, 0.3)
    fill = without_text([prophet], Stated(0.1))
    decode(fill)
    assert fill.now.pace.acceptance.usual == 0.3
    assert not SAMPLERS["T=1"].greedy
