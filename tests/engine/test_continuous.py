"""Prompts that come and go between steps say what each says alone."""

from __future__ import annotations

import threading
from functools import cache

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS, SEED
from support.listed import BUILD, each_method_on, exact
from test_row_state import count_reads

from longdraft import InputError, Stats, generate, match, row_seed, serve
from longdraft.core.cache import KVCache
from longdraft.drafters import AdaptiveDraft, Drafter

LENGTHS = (70, 31, 9, 50, 1, 44, 12)
NEW = 14


@cache
def alone(model: str, sampler: str, eos: tuple[int, ...] = ()) -> list[list[int]]:
    """What each prompt gives by itself."""
    options = {"max_new_tokens": NEW, "sampler": SAMPLERS[sampler], "eos": eos}
    prompts = tiny.prompts(*LENGTHS)
    return [
        generate(tiny.target(model), [p], seed=row_seed(SEED, i), **options)[0]
        for i, p in enumerate(prompts)
    ]


def served(
    model: str, drafter: Drafter | None, sampler: str, batch: int, eos: tuple[int, ...] = (), **more
):
    options = {
        "max_new_tokens": NEW,
        "sampler": SAMPLERS[sampler],
        "eos": eos,
        "slots": 160,
        **more,
    }
    found = {}
    for each in serve(
        tiny.target(model), iter(tiny.prompts(*LENGTHS)), drafter, batch, seed=SEED, **options
    ):
        assert each.index not in found
        found[each.index] = each.tokens
    return [found[i] for i in range(len(LENGTHS))]


def some_ends(model: str, sampler: str) -> tuple[int, ...]:
    """End tokens that cut some of the texts short, at different places."""
    return tuple({row[i] for row, i in zip(alone(model, sampler), (3, 5, 13), strict=False)})


@pytest.mark.each_value
@each_method_on("llama", "llama-bf16", "qwen3-bf16", "qwen3.5")
def test_every_method_in_places_that_change_hands(model, method):
    """Three places for seven prompts, of which some end early."""
    eos = some_ends(exact(model), "T=1")
    want = alone(model, "T=1", eos)
    assert len({len(row) for row in want}) > 2
    assert served(model, BUILD[method](tiny.target(model)), "T=1", 3, eos) == want


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 2, 7, 20])
@pytest.mark.parametrize("model", ["gpt-oss", "qwen3"])
def test_any_number_of_places(model, batch):
    eos = some_ends(model, "greedy")
    for drafter in (None, AdaptiveDraft(BUILD["vegas"](tiny.target(model)))):
        assert served(model, drafter, "greedy", batch, eos) == alone(model, "greedy", eos)


def test_rows_that_end_are_not_computed_on():
    """A pass has as many rows as there are prompts left."""
    seen = []
    stats = Stats()

    class Watch(Drafter):
        def grow(self, tree, seqs, limits):
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
        test_every_method_in_places_that_change_hands("llama", "lookup")


def test_prompts_are_taken_as_places_become_free():
    taken = []

    def prompts():
        for i, prompt in enumerate(tiny.prompts(*LENGTHS)):
            taken.append(i)
            yield prompt

    found = serve(tiny.target("llama"), prompts(), batch=2, slots=160, max_new_tokens=NEW)
    next(found)
    assert taken == [0, 1]


def test_bad_arguments_are_named():
    lm = tiny.target("llama")
    for asked, words in (
        ({"batch": 0}, "batch is 0"),
        ({"max_new_tokens": 0}, "max-new-tokens is 0"),
    ):
        with pytest.raises(InputError, match=words):
            list(serve(lm, tiny.prompts(9), **asked))
    assert torch.is_grad_enabled()


BAD = {
    1: ([], "no tokens"),
    3: ([5, 99], "prompt token 99"),
    4: ([5] * 150, "a row has 160"),
    5: (["x"], "token ids"),
}


@pytest.mark.parametrize("kind", [list, iter])
def test_a_bad_prompt_ends_alone(kind):
    """It takes a number in the order of prompts, so the others draw as they do without it."""
    prompts = [BAD[i][0] if i in BAD else p for i, p in enumerate(tiny.prompts(*LENGTHS))]
    options = {
        "max_new_tokens": NEW,
        "sampler": SAMPLERS["T=1"],
        "slots": 160,
        "seed": SEED,
        "eos": (),
    }
    drafter = BUILD["vegas"](tiny.target("llama"))
    found = {f.index: f for f in serve(tiny.target("llama"), kind(prompts), drafter, 3, **options)}
    assert sorted(found) == list(range(len(LENGTHS)))
    for i, text in enumerate(alone("llama", "T=1")):
        if i in BAD:
            assert found[i].tokens == [] and BAD[i][1] in found[i].error
        else:
            assert found[i].tokens == text and found[i].error is None


def test_a_prefill_without_memory_ends_alone(monkeypatch):
    lm = tiny.target("llama")
    prefill = lm.prefill

    def no_room(tokens, *more, **given):
        if len(tokens) == 49:
            raise MemoryError("no room")
        return prefill(tokens, *more, **given)

    want = alone("llama", "greedy")
    monkeypatch.setattr(lm, "prefill", no_room)
    options = {"max_new_tokens": NEW, "slots": 160, "seed": SEED, "eos": ()}
    found = {f.index: f for f in serve(lm, tiny.prompts(*LENGTHS), BUILD["sd"](lm), 3, **options)}
    assert found.pop(3).error == "MemoryError: no room"
    assert {i: f.tokens for i, f in found.items()} == {
        i: row for i, row in enumerate(want) if i != 3
    }


def test_a_source_that_blocks_does_not_block_the_rows_that_run():
    """The third prompt comes only after the first two texts are there."""
    gate = threading.Event()
    seen = []

    def prompts():
        yield from tiny.prompts(*LENGTHS[:2])
        seen.append(gate.wait(10))
        yield tiny.prompts(*LENGTHS[:3])[2]

    options = {"max_new_tokens": NEW, "slots": 160, "seed": SEED, "eos": ()}
    found = serve(
        tiny.target("llama"), prompts(), BUILD["vegas"](tiny.target("llama")), 3, **options
    )
    rows = [next(found), next(found)]
    gate.set()
    rows += list(found)
    assert seen == [True]
    assert [f.tokens for f in sorted(rows, key=lambda f: f.index)] == alone("llama", "greedy")[:3]


def test_a_source_that_fails_is_heard_after_the_rows_that_run():
    def prompts():
        yield from tiny.prompts(*LENGTHS[:2])
        raise OSError("the source is gone")

    rows = []
    options = {"max_new_tokens": NEW, "slots": 160, "seed": SEED, "eos": ()}
    with pytest.raises(OSError, match="the source is gone"):
        for found in serve(tiny.target("llama"), prompts(), batch=3, **options):
            rows.append((found.index, found.tokens))
    assert sorted(rows) == list(enumerate(alone("llama", "greedy")[:2]))


def test_serve_that_is_left_early_ends_its_thread():
    def threads():
        return [t for t in threading.enumerate() if t.name == "longdraft-prompts"]

    for last in (1, 7):
        found = serve(
            tiny.target("llama"),
            iter(tiny.prompts(*LENGTHS)),
            batch=2,
            slots=160,
            max_new_tokens=NEW,
        )
        for _ in range(last):
            next(found)
        started = threads()
        found.close()
        for thread in started:
            thread.join(10)
        assert threads() == []


def test_only_an_entry_costs_a_plain_round():
    """All seven enter at once; then they leave one by one, and none that stays takes a plain step
    for it.
    """
    plain = []

    def verify(tree, logits, sampler, rows):
        plain.append(tree.size == 1)
        return match(tree, logits, sampler, rows)

    eos = some_ends("llama", "T=1")
    drafter = BUILD["vegas"](tiny.target("llama"))
    assert served("llama", drafter, "T=1", 7, eos, verify=verify) == alone("llama", "T=1", eos)
    assert plain[0] and not any(plain[1:]) and len(plain) > 4


def test_a_small_model_reads_each_prompt_once(monkeypatch):
    drafter = BUILD["sd"](tiny.target("llama"))
    read = count_reads(monkeypatch)
    served("llama", drafter, "T=1", 3)
    # and what was said until the first draft
    assert 0 < sum(read) <= sum(LENGTHS) + 2 * len(LENGTHS)
