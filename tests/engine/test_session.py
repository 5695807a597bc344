"""Requests that are submitted, cancelled and fail one by one, each with the text that it has
alone.
"""

from __future__ import annotations

import threading
from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from support.listed import BUILD, each_method, each_method_on, exact
from support.prices import Stated
from support.sessions import REQUESTS, SLOTS, Ends, finish, others, request, session

from longdraft import AdaptiveDraft, InputError, Session, Stats, generate, match, reject
from longdraft.drafters import Fill, Lookup, PlainDecoding, SelfDrafter, SmallModelDrafter
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, Guided


@pytest.mark.each_value
@each_method_on("llama", "llama-bf16", "mistral-window", "llama-kv8", "qwen3.5")
def test_rows_that_come_and_go_say_what_they_say_alone(model, method):
    """Requests of different lengths, limits, seeds and ends enter and leave at staggered times."""
    s = session(exact(model), BUILD[method](tiny.target(model)))
    ends = Ends()
    ids = []
    for i in range(len(REQUESTS)):
        ids.append(s.submit(**request(model, i)[0]))
        if i > 1:
            ends.take(s.step())
    finish(s, ends)
    for i, id in enumerate(ids):
        asked, text = request(model, i)
        assert ends.texts[id] == text, f"request {i}"
        assert ends.how[id] == ("eos" if asked["eos"] else "length")


# Requests that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked,words",
    [
        ({"prompt": []}, "no tokens"),
        ({"prompt": [5, 96]}, "prompt token 96 is not in the model's vocabulary of 96"),
        ({"prompt": [-1]}, "prompt token -1"),
        ({"prompt": ["5"]}, "lists of token ids"),
        ({"prompt": [1.5]}, "lists of token ids"),
        (
            {"prompt": [5] * 200},
            "200 prompt tokens and 5 new ones need 205 slots, and a row has 160",
        ),
        ({"prompt": [5] * 510}, "exceed the model's 512 positions"),
        ({"prompt": [5], "max_new_tokens": 0}, "max-new-tokens is 0"),
        ({"prompt": [5], "seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"prompt": [5], "eos": [None]}, "lists of token ids"),
    ],
)
def test_a_bad_request_is_refused_and_the_others_go_on(asked, words):
    s = session("llama")
    id = s.submit(**request("llama", 0)[0])
    ends = Ends()
    ends.take(s.step())
    with pytest.raises(InputError, match=words):
        s.submit(**{"max_new_tokens": 5, **asked})
    assert finish(s, ends).texts == {id: request("llama", 0)[1]}


def test_bad_sessions_are_refused():
    lm = tiny.target("llama")
    for asked, words in (
        ({"batch": 0}, "batch is 0"),
        ({"slots": 1}, "slots is 1"),
        ({"drafter": Lookup(), "verify": reject}, "use verify=match"),
    ):
        with pytest.raises(InputError, match=words):
            Session(lm, **asked)


@pytest.mark.each_value
@pytest.mark.parametrize("error", [MemoryError, RuntimeError, InputError])
@pytest.mark.parametrize("method", ["vegas", "sd", "eagle3"])
def test_a_prefill_that_fails_fails_alone(method, error, monkeypatch):
    lm = tiny.target("llama")
    s = None
    prefill = lm.prefill
    for i in range(len(REQUESTS)):
        request("llama", i)  # what each gives alone, before the fault is planted

    def no_room(tokens, cache, **given):
        prefill(tokens[:20], cache)
        if len(tokens) == 49:  # request 3
            raise error("no memory")
        return prefill(tokens[20:], cache, **given)

    monkeypatch.setattr(lm, "prefill", no_room)
    s = session("llama", BUILD[method](lm))
    for i in range(len(REQUESTS)):
        s.submit(**request("llama", i)[0])
    others(finish(s, Ends()), {4: "no memory"})


@pytest.mark.each_value
@pytest.mark.parametrize("verb", ["enter", "leave"])
@pytest.mark.parametrize(
    "method", ["sd", "longspec", "eagle3", "dflash", "vegas, then lookup", "tokenswift", "recycle"]
)
def test_a_drafter_that_cannot_follow_starts_anew(method, verb, monkeypatch):
    """A request whose drafter cannot take it in fails alone; a drafter that fails when a row leaves
    fails nobody.
    """
    drafter = BUILD[method](tiny.target("llama"))
    calls = []
    good = getattr(drafter, verb)

    def bad(seqs, row):
        good(seqs, row)
        calls.append(row)
        if len(calls) == 2:
            raise MemoryError("no memory for a draft")

    monkeypatch.setattr(drafter, verb, bad)
    s = session("llama", drafter)
    for i in range(len(REQUESTS)):
        s.submit(**request("llama", i)[0])
    # the first one is its start
    others(finish(s, Ends()), {3: "no memory for a draft"} if verb == "enter" else {})


@each_method
def test_a_round_that_fails_fails_its_rows_and_no_later_ones(method, monkeypatch):
    rounds = []

    def verify(tree, logits, sampler, rows):
        rounds.append(len(logits))
        if len(rounds) == 3:
            raise MemoryError("no memory for a round")
        return match(tree, logits, sampler, rows)

    s = session("llama", BUILD[method](tiny.target("llama")), 2, verify=verify)
    for i in (0, 2, 4, 5):
        s.submit(**request("llama", i)[0])
    ends = finish(s, Ends())
    assert ends.how == {1: "failed", 2: "failed", 3: "length", 4: "eos"} and rounds[2] == 2
    for id, i in ((1, 0), (2, 2)):
        assert ends.texts[id] and ends.texts[id] == request("llama", i)[1][: len(ends.texts[id])]
    assert [ends.texts[3], ends.texts[4]] == [request("llama", i)[1] for i in (4, 5)]


def test_an_interrupt_is_passed_on_and_no_request_is_lost():
    def verify(tree, logits, sampler, rows):
        raise KeyboardInterrupt

    s = session("llama", verify=verify)
    id = s.submit([5, 6], 4)
    with pytest.raises(KeyboardInterrupt):
        s.step()
    [event] = s.step()
    assert (event.id, event.ended, s.running) == (id, "failed", 0)


def test_a_cache_that_could_not_grow_is_as_it_was(monkeypatch):
    """Room is counted only once it is there."""
    cache = tiny.target("llama").new_cache(1, 8)
    like = torch.zeros(1, 2, 0, 16)
    cache._store.reserve(0, 8, like, like)
    with monkeypatch.context() as mp:
        mp.setattr("longdraft.core.cache.zeros", lambda *a: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            cache._store.reserve(0, 9, like, like)
    assert cache._store.slots == 8


# Cancelling, closing, and other threads -----------------------------------------------------------


def test_waiting_and_running_requests_are_cancelled():
    s = session("llama", BUILD["vegas"](tiny.target("llama")), 2)
    ends = Ends()
    ids = [s.submit(**request("llama", i)[0]) for i in (0, 2, 5, 4)]
    assert (s.running, s.waiting) == (0, 4)
    ends.take(s.step())
    assert (s.running, s.waiting) == (2, 2)
    assert s.cancel(ids[0]) and s.cancel(ids[2])
    assert s.waiting == 1 and not s.cancel(ids[2]) and not s.cancel(99)
    ends.take(s.step())
    assert s.waiting == 0 and (ends.how[ids[0]], ends.how[ids[2]]) == ("cancelled", "cancelled")
    assert not s.cancel(ids[0]) and ends.texts[ids[2]] == []
    text = request("llama", 0)[1]
    assert (
        0 < len(ends.texts[ids[0]]) < len(text)
        and text[: len(ends.texts[ids[0]])] == ends.texts[ids[0]]
    )
    finish(s, ends)
    assert [ends.texts[ids[i]] for i in (1, 3)] == [request("llama", i)[1] for i in (2, 4)]
    assert s.step() == []


def test_closing_ends_everything():
    with session("llama", batch=1) as s:
        ids = [s.submit([5, 6], 9, eos=()), s.submit([7], 9, eos=())]
        s.step()
        assert [(e.id, e.ended) for e in s.close()] == [(id, "cancelled") for id in ids]
    assert s.step() == [] and s.running == s.waiting == 0
    with pytest.raises(RuntimeError, match="closed"):
        s.submit([5], 9)


def test_stats_are_of_all_rows():
    stats = Stats()
    s = session("llama", BUILD["sd"](tiny.target("llama")), stats=stats)
    for i in range(len(REQUESTS)):
        s.submit(**request("llama", i)[0])
    finish(s, Ends())
    assert stats.emitted == sum(len(request("llama", i)[1]) for i in range(len(REQUESTS)))
    assert min(stats.prefill_s, stats.start_s, stats.draft_s, stats.verify_s) > 0
    assert stats.decode_s >= stats.draft_s + stats.verify_s


def test_two_threads_do_not_step_at_once():
    inside = threading.Event()
    go_on = threading.Event()

    def verify(tree, logits, sampler, rows):
        inside.set()
        go_on.wait(20)
        return match(tree, logits, sampler, rows)

    s = session("llama", verify=verify)
    events = []
    s.submit([5, 6], 1, eos=())
    thread = threading.Thread(target=lambda: events.extend(s.step()))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(RuntimeError, match="one thread at a time"):
        s.step()
    later = s.submit([7], 1, eos=())  # not kept waiting by the round
    go_on.set()
    thread.join()
    assert [e.ended for e in events] == ["length"]
    assert [e.id for e in s.step()] == [later]


def test_requests_come_from_many_threads():
    """Three threads submit and cancel while a fourth steps."""
    s = session("llama", BUILD["vegas"](tiny.target("llama")))
    ends = Ends()
    asked = {}
    cancelled = set()
    lock = threading.Lock()

    def caller(seed: int) -> None:
        random = Random(seed)
        for _ in range(12):
            i = random.randrange(len(REQUESTS))
            id = s.submit(**request("llama", i)[0])
            with lock:
                asked[id] = i
                if random.random() < 0.3:
                    s.cancel(id)
                    cancelled.add(id)

    for i in range(len(REQUESTS)):
        request("llama", i)
    threads = [threading.Thread(target=caller, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads) or s.running or s.waiting:
        ends.take(s.step())
    ends.take(s.step())
    assert len(ends.how) == len(asked) == 36 and not ends.errors
    for id, how in ends.how.items():
        text = request("llama", asked[id])[1]
        assert ends.texts[id] == text[: len(ends.texts[id])]
        assert (how == "cancelled" and id in cancelled) or ends.texts[id] == text


# Any order of things ------------------------------------------------------------------------------

DRAFTERS = {
    "plain": lambda t: PlainDecoding(),
    "paced vegas": lambda t: AdaptiveDraft(SelfDrafter(t, Guided(0.07, 16), [1] * 3)),
    "auto": BUILD["auto"],
    "fill": BUILD["fill"],
    "fill of eagle3": lambda t: Fill([BUILD["eagle3"](t)], Stated(node=0.002)),
    "full view": lambda t: SelfDrafter(t, Full(), [1] * 3),
    "small model": lambda t: SmallModelDrafter(t, Chunks(40, every=3), [2, 2]),
    "eagle3, then reuse": BUILD["eagle3, then reuse"],
    "triforce": BUILD["triforce"],
    "suffix over texts": BUILD["suffix over texts"],
}
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, len(REQUESTS) - 1)),
    st.tuples(st.just("cancel"), st.integers(1, 12)),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("fail"), st.integers(1, 12)),
)


@pytest.mark.full
@pytest.mark.parametrize("drafter", DRAFTERS)
@given(st.lists(ACTIONS, max_size=20), st.integers(1, 4))
def test_any_schedule_gives_each_request_its_text(drafter, actions, batch):
    rounds = [0]
    failing = set()

    def verify(tree, logits, sampler, rows):
        rounds[0] += 1
        if rounds[0] in failing:
            raise RuntimeError("planned")
        return match(tree, logits, sampler, rows)

    lm = tiny.target("llama")
    ends = Ends()
    asked = {}
    cancelled = set()
    s = session("llama", DRAFTERS[drafter](lm), batch, verify=verify)
    for action, n in actions:
        if action == "submit":
            asked[s.submit(**request("llama", n)[0])] = n
        elif action == "cancel":
            alive = n in asked and n not in ends.how and n not in cancelled
            assert s.cancel(n) or not alive
            cancelled.add(n)
        elif action == "fail":
            failing.add(n)
        else:
            for _ in range(n):
                ends.take(s.step())
    finish(s, ends)
    ends.take(s.step())
    assert set(ends.how) == set(asked)
    for id, i in asked.items():
        text = request("llama", i)[1]
        assert ends.texts[id] == text[: len(ends.texts[id])]
        if ends.how[id] == "cancelled":
            assert id in cancelled
        elif ends.how[id] == "failed":
            assert failing and str(ends.errors[id]) == "planned"
        else:
            assert ends.texts[id] == text
    assert s.submit(**request("llama", 4)[0]) not in asked  # it still works
    assert list(finish(s, Ends()).texts.values()) == [request("llama", 4)[1]] or failing


def test_requests_with_end_tokens_of_their_own_under_a_models_rules():
    """Rules that speak of end tokens are each request's own: its text is what it has alone."""
    lm = LM(tiny.stock("llama"), "llama")
    lm.hf.generation_config.min_new_tokens = 4
    lm.hf.generation_config.repetition_penalty = 1.2
    prompts = tiny.prompts(40, 31, 22)
    ends = [None, (), (7, 9, 30)]
    want = [
        generate(lm, [p], max_new_tokens=14, eos=eos)[0]
        for p, eos in zip(prompts, ends, strict=True)
    ]
    with Session(lm, BUILD["vegas tree"](lm), slots=SLOTS) as s:
        ids = [s.submit(p, 14, eos=eos) for p, eos in zip(prompts, ends, strict=True)]
        texts = Counter()
        found: dict[int, list[int]] = {i: [] for i in ids}
        while s.running or s.waiting:
            for event in s.step():
                found[event.id] += event.tokens
                texts[event.id] += event.ended is not None
    assert [found[i] for i in ids] == want and set(texts.values()) == {1}
