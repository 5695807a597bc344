"""A short prompt overtakes a long one that is being read: which tokens are read when, equal texts,
and what happens to a paused prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS
from support.listed import BUILD
from support.sessions import Ends, stopped

from longdraft import PrefixCache, PromptFolder, Session, generate, match
from longdraft.drafters import Lookup
from longdraft.engine.admission import OVERTAKES, Admission
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import EnteringPrompt, RowPool

CHUNK = 32
LONG = 401  # tokens
SHORT = 21
NEW = 4
SLOTS = 440


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("longdraft.engine.session.IDLE_PREFILL", CHUNK)
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", CHUNK)
    monkeypatch.setattr("longdraft.models.lm.PART", CHUNK)  # where torch reads prompts


def prompt_of(length: int, whole: int = 0) -> list[int]:
    """A prompt of this length, or the beginning of a longer one of length `whole`."""
    [prompt] = tiny.prompts(whole or length, seed=whole or length)
    return prompt[:length]


@cache
def text(model: str, length: int, new: int = NEW, whole: int = 0) -> list[int]:
    """The new tokens of a prompt that is decoded alone."""
    lm = tiny.target(model)
    prompts = [prompt_of(length, whole)]
    return generate(lm, prompts, max_new_tokens=new, sampler=SAMPLERS["T=1"], seed=3, eos=())[0]


class Run:
    """A session with a long prompt, request 1. then: calls by the part after which they are made.

    reads: each part that was read, as the request and how many of its tokens were read by then, in
    order. before: by request, how many parts had been read when its first token came.
    """

    def __init__(
        self,
        model: str = "llama",
        rows: int = 3,
        long: bool = True,
        slots: int = SLOTS,
        **options,
    ):
        self.model = model
        self.reads = list[tuple[int, int]]()
        self.then = dict[tuple[int, int], Callable[[], object]]()
        self.before = dict[int, int]()
        self.lengths = dict[int, tuple[int, int, int]]()
        self.ends = Ends()
        options = {"chunk": CHUNK, "now": stopped} | options
        lm = tiny.target(model)
        self.session = Session(lm, None, rows, slots, SAMPLERS["T=1"], **options)
        self.session.watch = self._watch
        if long:
            self.submit(LONG)

    def _watch(self, event) -> None:
        part = event.id, event.reading.done
        assert event.reading.total == self.lengths[event.id][0]
        self.reads.append(part)
        self.then.pop(part, lambda: None)()

    def submit(self, length: int = SHORT, new: int = NEW, whole: int = 0, **options) -> int:
        prompt = prompt_of(length, whole)
        id = self.session.submit(prompt, new, seed=3, eos=(), **options)
        self.lengths[id] = length, new, whole
        return id

    def step(self) -> None:
        events = self.session.step()
        self.ends.take(events)
        for event in events:
            self.before.setdefault(event.id, len(self.reads))

    def finish(self) -> None:
        while self.session.running or self.session.waiting:
            self.step()
        assert not self.then
        rows = self.session._rows
        assert (self.session.needed, rows.free, rows.paused) == (0, rows.whole.capacity, None)

    def check(self, *failed: int) -> None:
        """All requests but these end with the texts that they have alone."""
        self.finish()
        for id, (length, new, whole) in self.lengths.items():
            if id not in failed:
                assert self.ends.how[id] == "length", id
                assert self.ends.texts[id] == text(self.model, length, new, whole), id
        assert {id for id, how in self.ends.how.items() if how != "length"} == set(failed)

    def long_before(self, id: int) -> int:
        """How many tokens of the long prompt were read before a request's first token."""
        return max((done for i, done in self.reads[: self.before[id]] if i == 1), default=0)


# Order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama", "qwen3.5", "llama-torch"])
def test_a_short_prompt_overtakes_where_nothing_runs(model):
    run = Run(model, prefixes=PrefixCache(2000, 16))
    run.then[1, 64] = lambda: run.submit(owner="b")
    run.check()
    assert run.reads[:4] == [(1, 32), (1, 64), (2, SHORT), (1, 96)]
    assert run.long_before(2) == 64
    run.submit(LONG)
    run.submit(SHORT, owner="b")
    run.check()  # from the prefix cache
    assert run.session.prefixes is not None and run.session.prefixes.hits >= 384


@pytest.mark.parametrize("model", ["llama", "qwen3.5"])
def test_a_short_prompt_overtakes_beside_a_row(model):
    """Rows enter and leave while the long prompt is read and paused."""
    run = Run(model, 4, long=False, prefixes=PrefixCache(2000, 16))
    run.submit(9, 7)
    run.step()
    run.submit(LONG)
    run.then[2, 64] = lambda: run.submit(70, 3, owner="b")
    run.then[2, 256] = lambda: run.submit(20, 8, owner="a")
    run.check()
    parts = [(2, 64), (3, 32), (3, 64), (3, 70), (2, 96)]
    assert run.reads[2:7] == parts
    assert run.reads[run.reads.index((4, 20)) - 1] == (2, 256)


def test_without_overtaking_the_short_prompt_waits(monkeypatch):
    monkeypatch.setattr(Admission, "_overtaking", lambda *_: None)
    run = Run()
    run.then[1, 64] = run.submit
    run.check()
    assert run.long_before(2) == LONG


@pytest.mark.parametrize("length,overtakes", [(84, True), (85, False)])
def test_only_a_prompt_that_is_short_enough_overtakes(length, overtakes):
    """After 64 of the 400 tokens that are read before the first step, 336 are left."""
    assert OVERTAKES * 84 == LONG - 1 - 64
    run = Run()
    run.then[1, 64] = lambda: run.submit(length)
    run.check()
    assert (run.long_before(2) == 64) == overtakes


def test_a_prompt_whose_last_chunk_is_next_is_not_overtaken():
    run = Run()
    run.then[1, 384] = lambda: run.submit(2)
    run.check()
    assert run.long_before(2) == LONG


@pytest.fixture
def long_parts(monkeypatch: pytest.MonkeyPatch):
    for name in ("engine.session.IDLE_PREFILL", "models.lm.CHECKPOINT", "models.lm.PART"):
        monkeypatch.setattr(f"longdraft.{name}", 256)


@pytest.mark.full
def test_a_prompt_of_thousands_of_tokens_is_overtaken(long_parts):
    run = Run("qwen3.5", long=False, slots=3100)
    run.submit(3000)
    run.then[1, 1024] = lambda: run.submit(64)
    run.check()
    assert run.long_before(2) == 1024


def follow_up(known: int, ahead: int = 0) -> int:
    """How many tokens of a prompt are read before a second one of 2,000 tokens is answered, if this
    many of the second one's are known and as many other long prompts as `ahead` wait before it.
    """
    run = Run("qwen3.5", slots=2100, long=False, prefixes=PrefixCache(100_000, 64, tails=True))
    if known:
        run.submit(known, 1, whole=2000)
        run.finish()
    long = run.submit(1500)
    submitted = list[int]()

    def submit() -> None:
        submitted.extend(run.submit(900) for _ in range(ahead))
        submitted.append(run.submit(2000))

    run.then[long, 512] = submit
    run.check()
    before = run.reads[: run.before[submitted[-1]]]
    return max(done for id, done in before if id == long)


@pytest.mark.full
@pytest.mark.parametrize("known,overtakes", [(1970, True), (1000, False), (0, False)])
def test_known_tokens_do_not_count(known, overtakes, long_parts):
    """After 512 of the first 1,499 tokens, 987 are left."""
    assert follow_up(known) == (512 if overtakes else 1500)


@pytest.mark.full
@pytest.mark.parametrize("ahead,overtakes", [(1, True), (2, False)])
def test_only_the_first_in_the_queue_are_looked_up(ahead, overtakes, long_parts, monkeypatch):
    monkeypatch.setattr("longdraft.engine.admission.LOOKED_UP", 2)
    assert follow_up(1970, ahead) == (512 if overtakes else 1500)


def test_a_cache_that_is_not_asked_is_noticed(long_parts, monkeypatch):
    monkeypatch.setattr(PrefixCache, "known", lambda *_: 0)
    assert follow_up(1970) == 1500


@pytest.mark.parametrize("model", ["llama", pytest.param("qwen3.5", marks=pytest.mark.full)])
def test_prompts_in_a_folder_overtake(model, tmp_path, monkeypatch):
    """The second server finds them on disk only."""
    monkeypatch.setattr("longdraft.prompts.prompt_folder.PART", CHUNK)
    lm = tiny.target(model)
    first = PromptFolder(tmp_path / "kept", lm, 100_000_000, PrefixCache(2000, 16, tails=True))
    run = Run(model, prefixes=first)
    run.then[1, 64] = lambda: run.submit(70, owner="b")
    run.check()
    assert run.long_before(2) == 64
    first.close()
    second = PromptFolder(tmp_path / "kept", lm, 100_000_000)
    run = Run(model, long=False, prefixes=second)
    run.submit(420)
    run.then[1, 64] = lambda: run.submit(LONG)
    run.check()
    assert run.long_before(2) == 64 and second.hits >= 384
    second.close()


def test_short_prompts_keep_their_order_and_pass_a_long_one():
    run = Run(rows=4)
    run.then[1, 32] = lambda: [run.submit(length) for length in (300, 22, 21)]
    run.check()
    order = list(dict.fromkeys(id for id, _ in run.reads))
    assert order == [1, 3, 4, 2]


# No starvation ------------------------------------------------------------------------------------


def crowded(length: int) -> tuple[list[int], int]:
    """How many tokens of the long prompt are read between two overtaking ones, which come all the
    time; and how many tokens these have in all.
    """
    run = Run()
    for done in range(CHUNK, LONG, CHUNK):
        run.then[1, done] = lambda: [run.submit(length, 1) for _ in range(2)]
    run.check()
    ends = [n for n, (id, done) in enumerate(run.reads) if id > 1 and done == length]
    last = run.reads.index((1, LONG))
    positions = [max(done for i, done in run.reads[:n] if i == 1) for n in ends if n < last]
    between = [b - a for a, b in pairwise(positions)]
    return between, length * len(positions)


@pytest.mark.parametrize("length,least", [(5, CHUNK), (60, 60)])
def test_a_long_prompt_is_read_between_overtaking_ones(length, least):
    between, total = crowded(length)
    assert len(between) > 1 and min(between) >= least
    assert total < LONG - 1


def test_a_prompt_that_starves_is_noticed(monkeypatch):
    unheld = property(lambda self: 0, lambda self, value: None)
    monkeypatch.setattr(EnteringPrompt, "held_until", unheld)
    between, total = crowded(60)
    assert min(between) == 0 and total > LONG - 1


# Rows and slots -----------------------------------------------------------------------------------


def test_a_paused_prompt_keeps_its_row_and_slots():
    run = Run(rows=4)
    session = run.session
    seen = []

    def look() -> None:
        seen.append((session.running, session.waiting, session.needed, session._rows.free))

    run.then[1, 64] = lambda: run.submit(70)
    run.then[2, 32] = lambda: (look(), run.submit(9), look())
    run.check()
    assert seen == [(0, 2, LONG + 70 + 2 * NEW, 2), (0, 3, LONG + 70 + 2 * NEW, 2)]
    assert run.reads.index((3, 9)) > run.reads.index((2, 70))  # only one is paused


@pytest.mark.parametrize("less", [0, 1])
def test_overtaking_needs_slots_beside_the_paused_prompt(less):
    run = Run(total=LONG + SHORT + 2 * NEW - less)
    run.then[1, 64] = run.submit
    run.check()
    assert run.long_before(2) == (LONG if less else 64)


def test_slots_of_a_paused_prompt_that_do_not_count_are_noticed(monkeypatch):
    entering = property(lambda pool: [pool.entering] if pool.entering else [])
    monkeypatch.setattr(RowPool, "unread", entering)
    with pytest.raises(AssertionError):
        test_a_paused_prompt_keeps_its_row_and_slots()


@pytest.mark.parametrize("rows", [1, 2])
def test_overtaking_needs_a_row(rows):
    run = Run(rows=rows)
    run.then[1, 64] = run.submit
    run.check()
    assert run.long_before(2) == (LONG if rows == 1 else 64)


def test_keys_that_do_not_move_with_the_prompt_are_noticed(monkeypatch):
    def renamed(pool: RowPool, reading: EnteringPrompt, b: int) -> None:
        pool.whole.cache.length[b] = pool.whole.cache.length[reading.row]
        reading.row = b

    text("llama", LONG)
    monkeypatch.setattr(RowPool, "_move", renamed)
    run = Run()
    run.then[1, 64] = run.submit
    with pytest.raises(AssertionError):
        run.check()


# Ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama", "qwen3.5"])
def test_a_paused_prompt_is_cancelled(model):
    run = Run(model, prefixes=PrefixCache(2000, 16))
    run.then[1, 64] = lambda: run.submit(70, owner="b")
    run.then[2, 32] = lambda: run.session.cancel(1)
    run.check(1)
    assert (1, 96) not in run.reads
    third = run.submit(LONG)
    run.check(1)
    assert run.reads[-1] == (third, LONG) and (third, 96) in run.reads  # what was read is known


def test_an_overtaking_prompt_is_cancelled():
    run = Run()
    run.then[1, 64] = lambda: run.submit(70)
    run.then[2, 32] = lambda: run.session.cancel(2)
    run.check(2)
    assert run.reads[2:4] == [(2, 32), (1, 96)]


def test_both_are_cancelled():
    run = Run()
    run.then[1, 64] = lambda: run.submit(70)
    run.then[2, 32] = lambda: [run.session.cancel(id) for id in (1, 2)]
    run.check(1, 2)


def test_a_session_is_closed_while_a_prompt_is_paused():
    run = Run()
    session = run.session
    run.submit(9, 20)
    run.then[1, 64] = lambda: run.submit(70)
    while not session._rows.paused:
        run.step()
    run.ends.take(session.close())
    assert set(run.ends.how.values()) == {"cancelled"} and len(run.ends.how) == 3
    assert (session.running, session.waiting, session.needed) == (0, 0, 0)


@pytest.mark.parametrize("fails", ["prefill", "load", "_enter"])
def test_an_overtaking_prompt_fails_alone(fails, monkeypatch):
    for length in (LONG, 70):
        text("llama", length, NEW, 0)  # as `check` asks for it
    run = Run(prefixes=PrefixCache(2000, 16))
    session = run.session
    owners = {"prefill": session.target, "load": session.prefixes, "_enter": session}
    good = getattr(owners[fails], fails)
    due = [(2, 70) if fails == "_enter" else (1, 64)]  # the part after which it fails once

    def bad(*given, **options):
        if run.reads[-1:] != due:
            return good(*given, **options)
        due.clear()
        due.append((0, 0))
        raise MemoryError("no memory")

    monkeypatch.setattr(owners[fails], fails, bad)
    run.then[1, 64] = lambda: run.submit(70)
    run.check(2)
    assert (1, 96) in run.reads


def test_a_paused_prompt_fails_later_alone(monkeypatch):
    run = Run()
    prefill = run.session.target.prefill

    def bad(tokens, *given, **options):
        if (1, 96) in run.reads:
            raise MemoryError("no memory")
        return prefill(tokens, *given, **options)

    for length in (LONG, SHORT):
        text("llama", length, NEW, 0)  # as `check` asks for it
    monkeypatch.setattr(run.session.target, "prefill", bad)
    run.then[1, 64] = run.submit
    run.check(1)


def test_a_step_that_fails_leaves_the_paused_prompt(monkeypatch):
    steps = []

    def verify(*given):
        steps.append(run.session._rows.paused)
        if len(steps) == 2:
            raise MemoryError("no memory")
        return match(*given)

    run = Run(long=False, verify=verify)
    run.submit(9, 20)
    run.then[1, 9] = lambda: run.submit(LONG)
    run.then[2, 32] = lambda: run.submit(70)
    run.check(1)
    assert steps[1] is not None


# Drafters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("long,short", [("own", "plain"), ("plain", "own"), ("own", "own")])
@pytest.mark.parametrize("method", ["vegas", "eagle3"])
def test_drafters_are_chosen_beside_a_paused_prompt(method, long, short):
    asked = {"own": {"method": "own"}, "plain": {"deepest": 0}}
    run = Run(long=False, others={"own": BUILD[method](tiny.target("llama"))})
    run.submit(LONG, 8, **asked[long])
    run.then[1, 64] = lambda: run.submit(SHORT, 8, **asked[short])
    run.check()
    assert run.long_before(2) == 64


def test_another_drafter_waits_for_the_paused_prompt():
    run = Run(long=False, others={"one": Lookup(), "two": Lookup(1, 4)})
    run.submit(LONG, method="one")
    run.then[1, 64] = lambda: run.submit(method="two")
    run.check()
    assert run.long_before(2) == LONG


def test_states_with_a_gap_are_dropped():
    reading = EnteringPrompt(Request(1, [5] * 9, 1, 0, (), SAMPLERS["T=1"]), 0, 0, 0)
    one, two = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    reading.keep({4: one, 5: one}, 3)
    reading.keep({4: two}, 3)
    assert reading.states.keys() == {4} and reading.states[4].shape == (1, 3, 3)
    reading.keep({}, 0)
    reading.keep({4: two}, 3)
    assert torch.equal(reading.states[4], two)
