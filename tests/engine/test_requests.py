"""What a server needs of a session: samplers and log-probabilities by request, bounded reading,
reuse of prefixes.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from support.listed import BUILD, case, each_method_on, exact, read_in_any_parts
from support.sessions import stopped

from longdraft import InputError, Sampler, Session, generate
from longdraft.core import Tree
from longdraft.drafters import PlainDecoding
from longdraft.engine.session import Event
from longdraft.errors import Busy
from longdraft.models import lm as lm_module
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import PrefixCache

SLOTS = 200
SAMPLERS = [
    Sampler(),
    Sampler(1.0),
    Sampler(0.7, top_p=0.8),
    Sampler(1.0, min_p=0.05, penalty=1.3, window=12),
    Sampler(0.0, frequency=1.5),
    Sampler(1.3, top_k=12, presence=0.8, bias=((7, 2.0), (9, -30.0))),
    Sampler(0.2, bias=((5, 3.0),)),
]
LENGTHS = (70, 31, 9, 50, 4, 44, 12)
NEW = 12


def asked(i: int) -> dict:
    return {"prompt": tiny.prompts(*LENGTHS)[i], "max_new_tokens": NEW, "seed": 100 + i, "eos": ()}


def alone(model: str, i: int) -> list[int]:
    """What `generate` gives for request i."""
    [text] = generate(
        tiny.target(model),
        [asked(i)["prompt"]],
        max_new_tokens=NEW,
        sampler=SAMPLERS[i],
        seed=100 + i,
        eos=(),
    )
    return text


def finish(s: Session) -> dict[int, list[Event]]:
    """Steps until everything has ended -> the events of each request."""
    found: dict[int, list[Event]] = {}
    while s.running or s.waiting:
        for event in s.step():
            assert event.error is None, event.error
            found.setdefault(event.id, []).append(event)
    return found


def texts(events: dict[int, list[Event]]) -> dict[int, list[int]]:
    return {id: [t for e in found for t in e.tokens] for id, found in events.items()}


@pytest.mark.each_value
@each_method_on("llama", "llama-bf16", "mistral-window")
def test_every_request_has_its_own_sampler(model, method):
    s = Session(tiny.target(exact(model)), BUILD[method](tiny.target(model)), 3, SLOTS)
    ids = [s.submit(**asked(i), sampler=SAMPLERS[i]) for i in range(len(LENGTHS))]
    assert texts(finish(s)) == {id: alone(model, i) for i, id in enumerate(ids)}


def test_samplers_of_other_rows_would_be_noticed(monkeypatch):
    """If rows kept their samplers while requests move between rows, outputs would differ."""
    from longdraft.core import RowSamplers

    monkeypatch.setattr(RowSamplers, "shared", property(lambda self: self.samplers[0]))
    s = Session(tiny.target("llama"), PlainDecoding(), 3, SLOTS)
    ids = [s.submit(**asked(i), sampler=SAMPLERS[i]) for i in range(len(LENGTHS))]
    assert texts(finish(s)) != {id: alone("llama", i) for i, id in enumerate(ids)}


@pytest.mark.each_value
@pytest.mark.parametrize("method", ["vegas", "longspec", "lookup", "eagle3", "sd"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_reading_in_parts_changes_nothing(method, chunk):
    lm = tiny.target("llama")
    s = Session(lm, BUILD[method](lm), 3, SLOTS, chunk=chunk)
    ids = [s.submit(**asked(i), sampler=SAMPLERS[i]) for i in range(len(LENGTHS))]
    assert texts(finish(s)) == {id: alone("llama", i) for i, id in enumerate(ids)}


@read_in_any_parts
def test_a_long_prompt_delays_others_by_a_chunk_at_a_time(monkeypatch):
    lm = tiny.target("llama")
    read = []
    prefill = lm.prefill
    monkeypatch.setattr(
        lm, "prefill", lambda tokens, *a, **k: read.append(len(tokens)) or prefill(tokens, *a, **k)
    )
    s = Session(lm, PlainDecoding(), 3, SLOTS, chunk=8, now=stopped)
    first = s.submit(**asked(2))
    assert [e.id for e in s.step()] == [first] and read == [8]  # alone it is read whole
    second = s.submit(**asked(0))
    for done in range(8, 69, 8):
        assert [e.id for e in s.step()] == [first]  # goes on while the other is read
        assert sum(read[1:]) == min(done, 69) and max(read) == 8 and s.waiting == 1
    assert {e.id for e in s.step()} == {first, second} and s.waiting == 0


def test_a_row_may_leave_while_a_prompt_is_read():
    lm = tiny.target("llama")
    s = Session(lm, BUILD["longspec"](lm), 3, SLOTS, chunk=5)
    ids = [
        s.submit(**(asked(i) | {"max_new_tokens": new}), sampler=SAMPLERS[i])
        for i, new in ((4, 3), (2, 5), (0, 12))
    ]
    found = texts(finish(s))
    assert [found[id] for id in ids] == [
        alone("llama", 4)[:3],
        alone("llama", 2)[:5],
        alone("llama", 0),
    ]


@read_in_any_parts
def test_a_request_may_be_cancelled_while_it_is_read():
    s = Session(tiny.target("llama"), PlainDecoding(), 2, SLOTS, chunk=8, now=stopped)
    first = s.submit(**asked(2))
    s.step()
    second = s.submit(**asked(0))
    third = s.submit(**asked(5))
    s.step()
    assert s.waiting == 2 and s.cancel(second)
    found = finish(s)
    assert [e.ended for e in found[second]] == ["cancelled"]
    assert len(texts(found)[first]) == NEW - 2 and texts(found)[third] == generate_plain(5)


@read_in_any_parts
@pytest.mark.parametrize("fault", [False, True])
def test_a_request_may_be_cancelled_while_it_alone_is_read(fault, monkeypatch):
    """From another thread, between two parts of its prompt. The fault: it is noticed only after the
    whole prompt.
    """
    lm = tiny.target("llama")
    read = []
    s = Session(lm, PlainDecoding(), 2, SLOTS)
    monkeypatch.setattr("longdraft.engine.session.IDLE_PREFILL", 16 if not fault else 1024)
    prefill = lm.prefill

    def watched(tokens, *given, **more):
        read.append(len(tokens))
        s.cancel(id)
        return prefill(tokens, *given, **more)

    monkeypatch.setattr(lm, "prefill", watched)
    id = s.submit(**asked(0))
    found = finish(s)
    assert (read == [16]) != fault
    assert [e.ended for e in found[id] if e.ended] == ["cancelled"]


def generate_plain(i: int) -> list[int]:
    return generate(
        tiny.target("llama"), [asked(i)["prompt"]], max_new_tokens=NEW, seed=100 + i, eos=()
    )[0]


# Room ---------------------------------------------------------------------------------------------


def test_a_full_queue_refuses():
    s = Session(tiny.target("llama"), PlainDecoding(), 1, SLOTS, queue=2)
    s.submit(**asked(0))
    ids = [s.submit(**asked(i)) for i in (1, 2)]
    with pytest.raises(Busy, match="2 requests are waiting"):
        s.submit(**asked(3))
    assert s.cancel(ids[0])
    s.submit(**asked(3))
    finish(s)


@pytest.mark.parametrize("before", [0, 1])  # steps between them
def test_requests_with_free_rows_do_not_wait_in_the_queue(before, monkeypatch):
    """Whether or not a step has admitted them yet."""

    def taken(batch: int, queue: int, **options: int) -> int:
        s = Session(tiny.target("llama"), PlainDecoding(), batch, SLOTS, queue=queue, **options)
        ids = list[int]()
        with pytest.raises(Busy, match=f"{queue} requests are waiting"):
            for i in range(8):
                ids.append(s.submit(**asked(i % 5)))
                for _ in range(before):
                    s.step()
        assert set(finish(s)) >= set(ids[-queue:])
        return len(ids)

    assert [taken(2, 0), taken(2, 2), taken(3, 1)] == [2, 4, 4]
    assert taken(3, 1, total=130) == 3  # the third of these finds a row, and too few slots
    monkeypatch.setattr("longdraft.engine.session.held_up", lambda waiting, *free: len(waiting))
    assert taken(2, 2) != 4 or before  # the check can fail


def test_rows_and_slots_are_free_again_after_a_request():
    s = Session(tiny.target("llama"), PlainDecoding(), 1, SLOTS, queue=0)
    for i in range(3):
        s.submit(**asked(i))
        with pytest.raises(Busy):
            s.submit(**asked(4))
        finish(s) if i else s.cancel(i + 1)


def test_running_requests_share_a_total_of_slots_in_order():
    s = Session(tiny.target("llama"), PlainDecoding(), 3, SLOTS, total=110)
    ids = [s.submit(**asked(i)) for i in (0, 3, 4)]  # they need 82, 62 and 16 slots
    s.step()
    # the third would fit, but is not the first in the queue
    assert (s.running, s.waiting, s.needed) == (
        1,
        2,
        82,
    )
    assert set(finish(s)) == set(ids)
    with pytest.raises(InputError, match="need 120 slots, and a row has 110"):
        s.submit([5] * 100, 20)


# Log-probabilities --------------------------------------------------------------------------------


def logprobs_of(lm: LM, tokens: list[int]) -> torch.Tensor:
    """[N,V]: the log-probabilities after each of the tokens, from one pass over all."""
    return lm(Tree.chain(torch.tensor([tokens])), lm.new_cache(1, len(tokens)))[0].log_softmax(-1)


@pytest.mark.each_value
@torch.inference_mode()
@pytest.mark.parametrize("length", [None, 1])
@pytest.mark.parametrize("method", ["vegas", "eagle3", "lookup"])
def test_logprobs_are_the_models_own(method, length):
    lm = tiny.target("llama")
    request = asked(0)
    request["prompt"] = prompt = request["prompt"][:length]
    s = Session(lm, BUILD[method](lm), 2, SLOTS, chunk=16)
    s.submit(**asked(1))
    id = s.submit(**request, sampler=SAMPLERS[2], logprobs=3, prompt_logprobs=True)
    events = finish(s)[id]
    new = [t for e in events for t in e.tokens]
    assert new == alone_with(prompt, SAMPLERS[2])
    law = logprobs_of(lm, prompt + new)
    read = events[0].prompt
    assert (
        read is not None and read.logprobs is not None and all(e.prompt is None for e in events[1:])
    )
    found = read.logprobs + [x for e in events for x in e.logprobs or ()]
    assert [x.token for x in found] == (prompt + new)[1:]
    for at, x in enumerate(found):
        assert x.logprob == pytest.approx(float(law[at, x.token]), abs=1e-4)
        values = law[at].topk(3).values.tolist()
        assert [p for _, p in x.top] == pytest.approx(values, abs=1e-4)
        assert [float(law[at, t]) for t, _ in x.top] == pytest.approx(values, abs=1e-4)


def alone_with(prompt: list[int], sampler: Sampler) -> list[int]:
    return generate(
        tiny.target("llama"), [prompt], max_new_tokens=NEW, sampler=sampler, seed=100, eos=()
    )[0]


def test_events_say_what_was_drafted_and_accepted():
    lm = tiny.target("llama")
    s = Session(lm, BUILD["full view"](lm), 2, SLOTS)
    s.submit(**asked(0))
    [events] = finish(s).values()
    assert events[0].drafted == events[0].accepted == 0  # the first step drafts nothing
    assert (
        all(e.accepted == len(e.tokens) - 1 == e.drafted for e in events[1:-1])
        and events[1].drafted > 1
    )


# Prefixes -----------------------------------------------------------------------------------------


class Forgetful(PrefixCache):
    """Finds a block by its tokens alone, whatever came before them."""

    def _known(self, tokens, owner):
        anywhere = {key[1]: key for key in self._blocks}
        found = []
        for at in range(len(tokens) // self.block):
            key = anywhere.get(tuple(tokens[at * self.block : (at + 1) * self.block]))
            if key is None:
                break
            found.append(key)
        return found


class OneLate(PrefixCache):
    """Keeps keys and values of the tokens one later."""

    def store(self, tokens, row, owner="", complete=True):
        for layer in row.layers:
            for x in row.stored(layer, 0):
                x.copy_(x.roll(-1, 1))
        super().store(tokens, row, owner, complete)
        for layer in row.layers:
            for x in row.stored(layer, 0):
                x.copy_(x.roll(1, 1))


def conversation(
    model: str, method: str, prefixes: PrefixCache | None
) -> tuple[list[list[int]], list[int]]:
    """The texts of requests that share beginnings, and how much of each was known."""
    lm = tiny.target(model)
    s = Session(lm, BUILD[method](lm), 2, 400, prefixes=prefixes, sampler=Sampler(1.0))
    a, b = tiny.prompts(61, 40)
    found = []
    known = []
    text = a
    for turn, more in enumerate((b[:9], b[:5], b[:20])):
        s.submit(b[20:36] + a, 4, seed=turn)  # the same tokens elsewhere
        id = s.submit(text, 10, seed=turn, eos=())
        events = finish(s)[id]
        found.append([t for e in events for t in e.tokens])
        known.append(0 if events[0].prompt is None else events[0].prompt.known)
        text = text + found[-1] + more
    return found, known


class OthersStates(PrefixCache):
    """States are those of the block before."""

    def load(self, tokens, row, multiple=1, owner=""):
        known = super().load(tokens, row, multiple, owner)
        if known:
            key = self._known(tokens, owner)[known // self.block - 2]
            row.resume(known, self._blocks[key].states or {})
        return known


@pytest.mark.each_value
@read_in_any_parts
@pytest.mark.parametrize("method", ["vegas", "longspec", "eagle3", "sd", "suffix"])
@pytest.mark.parametrize("model", ["llama", "llama-bf16", "llama-kv8", "mistral-window"])
def test_known_prefixes_change_nothing(model, method):
    without, none = conversation(exact(model), method, None)
    found, known = conversation(model, method, PrefixCache(4000, block=16))
    assert found == without and none == [0, 0, 0]
    assert known == [0, 64, 80]  # whole blocks of the prompt and the answer before: 70, 86 tokens


@read_in_any_parts
@pytest.mark.parametrize("fault", [Forgetful, OneLate])
def test_a_wrong_prefix_is_noticed(fault):
    assert (
        conversation("llama", "vegas", fault(4000, block=16))[0]
        != conversation("llama", "vegas", None)[0]
    )


@pytest.fixture
def short_parts(monkeypatch):
    """Prompts are read in parts of 16 tokens, and states kept after each."""
    monkeypatch.setattr(lm_module, "PART", 16)
    monkeypatch.setattr(lm_module, "CHECKPOINT", 16)


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["vegas", "magicdec-snapkv", case("suffix", id="suffix", daily=False)]
)
def test_known_prefixes_bring_their_states(method, short_parts):
    without, none = conversation("qwen3.5", method, None)
    found, known = conversation("qwen3.5", method, PrefixCache(40000, block=16))
    assert found == without and none == [0, 0, 0]
    # whole blocks of the prompt before, and of its answer where decoding writes the keys of reading
    assert known == ([0, 64, 80] if tiny.target("qwen3.5").exact else [0, 48, 64])


@pytest.mark.full
def test_a_prefix_with_the_states_of_another_one_is_noticed(short_parts):
    without, _ = conversation("qwen3.5", "vegas", None)
    assert conversation("qwen3.5", "vegas", OthersStates(40000, block=16))[0] != without


@pytest.mark.parametrize("verb", ["load", "_store"])
def test_a_prefix_cache_without_memory_costs_at_most_one_request(verb, monkeypatch):
    """A request whose prefix cannot be loaded fails alone; one that cannot be stored fails
    nobody.
    """
    lm = tiny.target("llama")
    prefixes = PrefixCache(4000, block=16)
    s = Session(lm, PlainDecoding(), 2, SLOTS, prefixes=prefixes)
    s.submit(**asked(0))
    finish(s)

    def none(*given):
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(prefixes, verb, none)
        s.submit(**asked(1))
        found = []
        while s.running or s.waiting:
            found += s.step()
    assert [e.ended for e in found if e.ended] == (["failed"] if verb == "load" else ["length"])
    assert prefixes.used == (0 if verb == "_store" else prefixes.used)
    id = s.submit(**asked(0))
    assert texts(finish(s))[id] == generate_plain(0)


@read_in_any_parts
def test_a_prefix_cache_is_bounded_and_forgets_the_oldest():
    lm = tiny.target("llama")
    prefixes = PrefixCache(96, block=16)
    s = Session(lm, PlainDecoding(), 1, SLOTS, prefixes=prefixes)
    first, second, third = tiny.prompts(65, 49, 33)

    def known(prompt: list[int]) -> int:
        s.submit(prompt, 1, eos=())
        [events] = finish(s).values()
        assert events[0].prompt is not None and prefixes.used <= 1
        return events[0].prompt.known

    assert [known(first), known(first), known(second), known(second)] == [0, 64, 0, 48]
    assert known(first) == 48  # one block had to go, the last of the one used longest ago
    assert known(third) == 0 and known(first) == 64
    assert known(second) < 48
    with pytest.raises(InputError, match="no room for a block"):
        PrefixCache(15, block=16)
