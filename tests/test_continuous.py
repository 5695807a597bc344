"""Prompts that come and go between steps say what each says alone."""

from __future__ import annotations

import pytest
import tiny
import torch
from checks import SAMPLERS, SEED
from listed import BUILD, each_method

from longdraft import InputError, Stats, generate, row_seed, serve
from longdraft.cache import KVCache
from longdraft.drafters import Drafter, Pace

LENGTHS = (70, 31, 9, 50, 1, 44, 12)
NEW = 14


def alone(model: str, sampler: str, eos: tuple[int, ...] = ()) -> list[list[int]]:
    """What each prompt gives by itself."""
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS[sampler], "eos": eos}
    prompts = tiny.prompts(*LENGTHS)
    return [generate(tiny.target(model), [p], seed=row_seed(SEED, i), **options)[0] for i, p in enumerate(prompts)]


def served(model: str, drafter: Drafter | None, sampler: str, batch: int, eos: tuple[int, ...] = (), **more):
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS[sampler], "eos": eos, "slots": 160, **more}
    found = {}
    for each in serve(tiny.target(model), iter(tiny.prompts(*LENGTHS)), drafter, batch, seed=SEED, **options):
        assert each.index not in found
        found[each.index] = each.tokens
    return [found[i] for i in range(len(LENGTHS))]


def some_ends(model: str, sampler: str) -> tuple[int, ...]:
    """End tokens that cut some of the texts short, at different places."""
    return tuple({row[i] for row, i in zip(alone(model, sampler), (3, 5, 13), strict=False)})


@each_method
def test_every_method_in_places_that_change_hands(method):
    """Three places for seven prompts, of which some end early."""
    eos = some_ends("llama", "T=1")
    want = alone("llama", "T=1", eos)
    assert len({len(row) for row in want}) > 2
    assert served("llama", BUILD[method](tiny.target("llama")), "T=1", 3, eos) == want


@pytest.mark.parametrize("batch", [1, 2, 7, 20])
@pytest.mark.parametrize("model", ["gpt-oss", "qwen3"])
def test_any_number_of_places(model, batch):
    eos = some_ends(model, "greedy")
    for drafter in (None, Pace(BUILD["vegas"](tiny.target(model)))):
        assert served(model, drafter, "greedy", batch, eos) == alone(model, "greedy", eos)


def test_rows_that_end_are_not_computed_on():
    """A pass has as many rows as there are prompts left."""
    seen, stats = [], Stats()

    class Watch(Drafter):
        def grow(self, tree, seqs):
            seen.append(len(tree.tokens))
            return tree

    served("llama", Watch(), "T=1", 3, some_ends("llama", "T=1"), stats=stats)
    assert seen == sorted(seen, reverse=True) and seen[0] == 3 > seen[-1]
    assert stats.emitted == sum(map(len, alone("llama", "T=1", some_ends("llama", "T=1"))))


def test_keys_that_do_not_move_with_their_row_are_caught(monkeypatch):
    """The planted fault: the last row's tokens move, its keys and values stay."""

    def move(self: KVCache, source: int, to: int) -> None:
        self.length[to] = self.length[source]

    monkeypatch.setattr(KVCache, "move", move)
    with pytest.raises(AssertionError):
        test_every_method_in_places_that_change_hands("lookup")


def test_prompts_are_taken_as_places_become_free():
    taken = []

    def prompts():
        for i, prompt in enumerate(tiny.prompts(*LENGTHS)):
            taken.append(i)
            yield prompt

    found = serve(tiny.target("llama"), prompts(), batch=2, slots=160, max_new_tokens=NEW)
    next(found)
    assert taken == [0, 1]


def test_bad_prompts_are_named():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="prompt 1 needs 70 tokens and 14 new ones, and there are 64 slots"):
        list(serve(lm, tiny.prompts(9, 70), slots=64, max_new_tokens=NEW))
    with pytest.raises(InputError, match="batch is 0"):
        list(serve(lm, tiny.prompts(9), batch=0))
    with pytest.raises(InputError, match="no tokens"):
        list(serve(lm, [[]], max_new_tokens=NEW))
    assert torch.is_grad_enabled()
