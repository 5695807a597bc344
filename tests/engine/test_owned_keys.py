"""No request attends to keys that were not read for its own prompt, whoever had its row before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from support import tiny
from support.checks import SAMPLERS
from support.listed import BUILD, full, weekly
from support.tiny import Words
from support.uncopied import counted_only, shapes_of_the_latest_row

from longdraft import InputError, PrefixCache, PromptFolder, Session, generate, serve, stream
from longdraft.core import KVCache, PromptSpec
from longdraft.drafters import PlainDecoding
from longdraft.engine.conversation import Conversation
from longdraft.engine.requests import make_request
from longdraft.engine.row_pool import RowPool
from longdraft.models.lm import LM
from longdraft.ops import row_seed
from longdraft.prompts.prompt_file import PromptFile, PromptFiles
from longdraft.recording.race import Race
from longdraft.recording.trace import Lane, new_trace

BLOCK = 16
NEW = 10
SLOTS = 400
SAMPLER = SAMPLERS["T=1"]
# plain, in codes, read by torch, with recurrent layers
MODELS = (
    "llama",
    "qwen3-kv8",
    "llama-torch",
    "qwen3.5",
)
each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 2 * BLOCK)  # where torch reads prompts
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", 2 * BLOCK)  # where states are kept


@cache
def alone(model: str, prompt: tuple[int, ...], seed: int = 3) -> list[int]:
    return generate(
        tiny.target(model), [list(prompt)], max_new_tokens=NEW, sampler=SAMPLER, seed=seed, eos=()
    )[0]


@cache
def read(model: str, tokens: tuple[int, ...]) -> KVCache:
    """A row into which these tokens were read."""
    lm = tiny.target(model)
    row = lm.new_cache(1, len(tokens))
    with torch.inference_mode():
        lm.prefill(list(tokens), row)
    return row


class Checked(PrefixCache):
    """Whatever is loaded has the bits that reading it gives."""

    def __init__(self, model: str, tokens: int = 2048):
        super().__init__(tokens, BLOCK)
        self.model = model

    def load(self, tokens: list[int], row: KVCache, *given) -> int:
        known = super().load(tokens, row, *given)
        want = read(self.model, tuple(tokens[:known])) if known else row
        assert int(row.length[0]) == known and (not known or row.layers == want.layers)
        for layer in want.layers if known else ():
            for x, wanted in zip(row.stored(layer, 0), want.stored(layer, 0), strict=True):
                assert torch.equal(x[:, :known], wanted[:, :known]), (
                    f"layer {layer} of {known} tokens"
                )
        states = row.states_at(known)
        wanted = want.states_at(known)
        assert states is not None and wanted is not None and states.keys() == wanted.keys()
        assert all(torch.equal(states[n], wanted[n]) for n in states)
        return known


def session(
    model: str, prefixes: PrefixCache | PromptFolder | None, rows: int = 1, drafter=None
) -> Session:
    return Session(
        tiny.target(model), drafter, rows, SLOTS, SAMPLER, chunk=2 * BLOCK, prefixes=prefixes
    )


def ask(s: Session, prompt: list[int], owner: str = "", new: int = NEW) -> list[int]:
    s.submit(prompt, new, seed=3, eos=(), owner=owner)
    said = []
    while s.running or s.waiting:
        said += [token for event in s.step() for token in event.tokens]
    return said


def race(
    model: str, prompt: list[int], prefixes: PrefixCache | None, owner: str = "", seed: int = 3
) -> Race:
    lm = tiny.target(model)
    request = make_request(lm, SLOTS, prompt, NEW, seed, (), SAMPLER, None, False)
    lanes = [Lane(method=name, options={}) for name in ("plain", "lookup")]
    trace = new_trace(lm, Words(), prompt, NEW, SAMPLER, seed, lanes)
    drafters = [PlainDecoding(), BUILD["lookup"](lm)]
    return Race(
        lm, Words(), replace(request, owner=owner), drafters, trace, prefixes, chunk=2 * BLOCK
    )


def traced(run: Race) -> list[list[int]]:
    while not run.over:
        run.step()
    return [[t for r in lane.rounds for t in r.tokens] for lane in run.trace.lanes]


# After a prompt of one token ----------------------------------------------------------------------


@pytest.mark.full
@each_model
def test_a_trace_of_one_token_takes_nothing_from_the_prefixes(model):
    [text, other], prefixes = tiny.prompts(150, 140), Checked(model)
    with session(model, prefixes) as s:
        ask(s, text, "b")
        ask(s, other, "a")
        assert traced(race(model, [7], prefixes, "b")) == [alone(model, (7,))] * 2
        before = prefixes.hits
        assert ask(s, text, "b") == alone(model, tuple(text)) and prefixes.hits >= before + 128
        assert ask(s, [7], "b") == alone(model, (7,))
        assert ask(s, text + other[:9], "b") == alone(model, (*text, *other[:9]))


@each_model
def test_keys_that_were_not_copied_are_caught(model, monkeypatch):
    shapes_of_the_latest_row(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_trace_of_one_token_takes_nothing_from_the_prefixes(model)


# Another's keys -----------------------------------------------------------------------------------


def after(model: str, rows: int, seed: int) -> list[list[int]]:
    """What one owner is told, where nothing is copied and the rows were another owner's, whose
    texts have this seed.
    """
    (text, part), others, prefixes = (
        tiny.prompts(150, 31),
        tiny.prompts(170, 150, 90, seed=seed),
        PrefixCache(4096, 16),
    )
    with session(model, prefixes, rows) as s:
        ask(s, text, "b")
        for i, prompt in enumerate(others):
            s.submit(prompt, 3 + 4 * i, seed=3, eos=(), owner="a")
        s.cancel(s.submit(tiny.prompts(120, seed=seed + 9)[0], NEW, owner="a"))
        left = s.submit(tiny.prompts(180, seed=seed + 19)[0], NEW, owner="a")
        while s.running or s.waiting:
            s.step()
            if (
                s._rows.reading is not None
                and s._rows.reading.request.id == left
                and s._rows.reading.position > 99
            ):
                s.cancel(left)
        return [ask(s, text, "b"), ask(s, text + part, "b")]


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 3])
@each_model
def test_a_prompt_that_was_not_copied_sees_nothing_of_another_owner(model, rows, monkeypatch):
    """The text is wrong then, but it is the same whatever the other owner has sent."""
    counted_only(monkeypatch)
    told = after(model, rows, 5)
    assert told == after(model, rows, 6)
    # whose states were loaded
    assert told[0] != alone(model, tuple(tiny.prompts(150)[0])) or model == "qwen3.5"


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_not_wiped_are_caught(rows, monkeypatch):
    monkeypatch.setattr(KVCache, "wipe", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_prompt_that_was_not_copied_sees_nothing_of_another_owner("llama", rows, monkeypatch)


def left_in(pool: RowPool, b: int) -> int:
    """Up to which slot row b has numbers that are not zero."""
    k = pool.whole.cache.stored(0, b)[0]
    return int((k != 0).any(0).any(-1).nonzero().max()) + 1 if bool((k != 0).any()) else 0


@torch.inference_mode()
def test_rows_are_wiped_between_owners_alone():
    """As far as the prompt will fill them, however the request before ended; a row that moved is
    another's too.
    """
    lm = tiny.target("llama")
    prompts = tiny.prompts(90, 70, 50)
    pool = RowPool(lm, 3, SLOTS)

    def enter(prompt: list[int], owner: str, most: int = 1000) -> tuple[int, int]:
        """From which slot on its row had numbers when it was about to be read, and where they
        ended.
        """
        request = make_request(lm, SLOTS, prompt, NEW, 0, (), SAMPLER, None, False)
        pool.begin(replace(request, id=1, owner=owner))
        k = (
            pool.whole.cache.row(len(pool.requests)).stored(0, 0)[0]
            if pool.whole.cache.layers
            else torch.zeros(1, 1, 1)
        )
        written = (k != 0).any(0).any(-1).nonzero()[:, 0].tolist()
        pool.read(most, PromptSpec())
        return (written[0], written[-1] + 1) if written else (0, 0)

    assert [enter(p, owner) for p, owner in zip(prompts, "abc", strict=True)] == [(0, 0)] * 3
    pool.leave(0)  # c moves to row 0, and stays in row 2 too
    assert pool.remains.owners == [{"a", "c"}, {"b"}, {"c"}]
    assert enter(prompts[2], "c") == (0, 49)  # of one owner: nothing is wiped
    pool.leave(2)
    assert enter(prompts[1][:30], "a") == (29, 49)
    pool.leave(2)
    assert enter(prompts[1][:40], "a") == (39, 49)  # the rest is still c's
    pool.leave(2)
    assert enter(tiny.prompts(300)[0], "b", most=64) == (0, 0) and pool.remains.owners[2] == {"b"}
    pool.drop()
    assert enter(prompts[0], "b") == (0, 64)
    pool.leave(2)
    assert enter(tiny.prompts(300)[0], "a") == (0, 0)


def test_a_prefix_cache_is_of_one_model():
    """Whose keys have the same shapes or others."""
    prefixes = PrefixCache(2048, BLOCK)
    with session("llama", prefixes) as s:
        ask(s, tiny.prompts(60)[0])
    for model in ("llama-loops", "qwen3.5"):
        with pytest.raises(InputError, match="another model: give each model its own"):
            session(model, prefixes)
    session("llama", prefixes).close()


@torch.inference_mode()
@pytest.mark.parametrize(
    "fault", ["none", "a layer less", "another shape", "another layer in the row", "no shapes"]
)
def test_blocks_are_loaded_only_if_they_are_all_of_the_row(fault):
    lm, [prompt], prefixes = tiny.target("llama"), tiny.prompts(65), PrefixCache(2048, BLOCK)
    read = lm.new_cache(1, SLOTS)
    row = lm.new_cache(1, SLOTS)
    lm.prefill(prompt[:64], read)
    prefixes.store(prompt[:64], read)
    for block in prefixes._blocks.values():
        if fault == "a layer less" and block.number == 2:
            block.shapes = {layer: shape for layer, shape in block.shapes.items() if layer}
        if fault == "another shape" and block.number == 2:
            block.shapes = block.shapes | {0: (1, 16, 16, torch.float32)}
        if fault == "no shapes":
            block.shapes = {}
    if fault == "another layer in the row":
        row.allocate(read.shapes | {9: read.shapes[0]})
    known = prefixes.load(prompt[:64], row)
    assert known == int(row.length[0]) == (64 if fault == "none" else 0)
    assert prefixes.hits == known and (
        fault != "none" or torch.equal(*(x.read(0, 0)[0][:, :64] for x in (read, row)))
    )


# Prompts of one token, by every entrance ----------------------------------------------------------


def by_session(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    with session(model, None) as s:
        return ask(s, prompt)


def by_prefixes(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    """The second time after a longer text that begins with it, which is known."""
    prefixes = PrefixCache(2048, BLOCK)
    with session(model, prefixes, 2, BUILD["lookup"](lm)) as s:
        first = ask(s, prompt)
        longer = prompt + tiny.prompts(80)[0]
        assert [ask(s, longer), ask(s, longer)] == [alone(model, tuple(longer))] * 2
        assert ask(s, prompt) == first
        assert prefixes.hits >= 64
        return first


def by_serve(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    prompts = [tiny.prompts(50)[0], prompt, prompt, tiny.prompts(33)[0]]
    options = {
        "batch": 2,
        "slots": SLOTS,
        "max_new_tokens": NEW,
        "sampler": SAMPLER,
        "seed": 3,
        "eos": (),
    }
    found = {f.index: f.tokens for f in serve(lm, prompts, **options)}
    for i, said in found.items():
        assert said == alone(model, tuple(prompts[i]), row_seed(3, i))
    [said] = [f.tokens for f in serve(lm, [prompt], **options)]
    return said


def by_conversation(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    talk = Conversation(lm, SAMPLER, 3)

    def say(text: list[int]) -> list[int]:
        return [t for step in talk.answer(text, NEW) for t in step.tokens[0]][:NEW]

    first = say(prompt)
    longer = prompt + first + [9, 8]
    assert say(longer) == alone(model, tuple(longer)) and say(prompt) == first
    if talk.tokens and lm.exact:
        talk.save(place / "talk")
        other = Conversation(lm, SAMPLER, 3)
        other.load(place / "talk")
        talk = other
    assert say(longer) == alone(model, tuple(longer)) and say(prompt) == first
    return first


def by_files(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    said = []
    for kept in (PromptFile(place / "one", lm), PromptFiles(place / "all", lm)):
        for text in (prompt, prompt, prompt + tiny.prompts(70)[0], prompt):
            options = {"max_new_tokens": NEW, "sampler": SAMPLER, "seed": 3, "eos": ()}
            said = generate(lm, [text], prompt_cache=kept, **options)[0]
            assert said == alone(model, tuple(text)), kept.note
    return said


def by_folder(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    folder = PromptFolder(place / "folder", lm, 100_000_000, PrefixCache(2048, BLOCK))
    with session(model, folder, 2) as s:
        for text in (prompt, prompt + tiny.prompts(300)[0], prompt):
            said = ask(s, text)
            assert said == alone(model, tuple(text))
    folder.close()
    return said


def by_trace(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    prefixes = PrefixCache(2048, BLOCK)
    longer = prompt + tiny.prompts(80)[0]
    for text in (longer, prompt, longer, prompt):
        first, second = traced(race(model, text, prefixes))
        assert first == second == alone(model, tuple(text))
    return second


def by_scores(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    """With the log-probabilities of the prompt, of which there are none, and of the new tokens."""
    with session(model, PrefixCache(2048, BLOCK)) as s:
        s.submit(prompt, NEW, seed=3, eos=(), logprobs=1, prompt_logprobs=True)
        events = []
        while s.running or s.waiting:
            events += s.step()
    assert events[0].prompt is not None and events[0].prompt.logprobs == []
    assert all(len(e.logprobs or ()) == len(e.tokens) for e in events)
    return [token for event in events for token in event.tokens]


def by_stream(lm: LM, prompt: list[int], place, model: str) -> list[int]:
    options = {"max_new_tokens": NEW, "sampler": SAMPLER, "seed": 3, "eos": ()}
    rows = [[], []]
    for step in stream(lm, [prompt, tiny.prompts(40)[0]], BUILD["lookup"](lm), **options):
        for row, tokens in zip(rows, step.tokens, strict=True):
            row += tokens
    assert rows[1] == alone(model, tuple(tiny.prompts(40)[0]), row_seed(3, 1)) or not lm.exact
    return rows[0]


ENTRANCES = (
    by_stream,
    by_session,
    by_prefixes,
    by_serve,
    by_conversation,
    by_files,
    by_folder,
    by_trace,
    by_scores,
)


@pytest.mark.each_value
@pytest.mark.parametrize("entrance", ENTRANCES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("model", ["llama", "qwen3.5", pytest.param("qwen3-kv8", marks=full)])
def test_a_prompt_of_one_token_says_the_same_by_every_entrance(model, entrance, tmp_path):
    assert entrance(tiny.target(model), [7], tmp_path, model) == alone(model, (7,))


def test_a_prompt_of_one_token_is_continued_as_by_transformers():
    [said] = generate(tiny.target("llama"), [[7]], max_new_tokens=NEW, eos=())
    found = tiny.eager("llama").generate(torch.tensor([[7]]), max_new_tokens=NEW, do_sample=False)
    assert said == found[0, 1:].tolist()


# Anything in any order ----------------------------------------------------------------------------


class Fuzz:
    """Two owners' requests, traces and cancellations in an order that a seed decides; each answer
    is compared.
    """

    def __init__(self, model: str, seed: int):
        self.model = model
        self.random = Random(seed)
        self.did = Counter[str]()
        self.prefixes = Checked(model, 1024)
        self.session = session(model, self.prefixes, 2, BUILD["lookup"](tiny.target(model)))
        self.texts = {owner: tiny.prompts(150, 100, seed=n) for n, owner in enumerate("ab")}
        # owner, prompt and what was said so far
        self.open: dict[int, tuple[str, list[int], list[int]]] = {}
        self.race: Race | None = None

    def prompt(self, owner: str) -> list[int]:
        if self.random.random() < 0.3:
            return [self.random.randrange(3, 9)]
        text = self.random.choice(self.texts[owner])
        return [*text[: self.random.choice([33, 65, 100, len(text)])], self.random.randrange(3, 9)]

    def ask(self) -> None:
        owner = self.random.choice("ab")
        prompt = self.prompt(owner)
        id = self.session.submit(prompt, NEW, seed=3, eos=(), owner=owner)
        self.open[id] = owner, prompt, []

    def trace(self) -> None:
        if self.race is None:
            owner = self.random.choice("ab")
            self.race = race(self.model, self.prompt(owner), self.prefixes, owner)

    def cancel(self) -> None:
        if self.open:
            self.did["cancelled"] += self.session.cancel(self.random.choice(list(self.open)))

    def step(self) -> None:
        """One step of the session and one of the trace, as the server takes them."""
        for event in self.session.step():
            owner, prompt, said = self.open[event.id]
            said += event.tokens
            if event.ended is not None:
                self.end(owner, prompt, said, event)
        if self.race is not None:
            self.race.step()
            if self.race.over:
                self.did["traces"] += 1
                run = self.race
                self.race = None
                assert traced(run) == [alone(self.model, tuple(run._runners[0].request.prompt))] * 2

    def end(self, owner, prompt, said, event) -> None:
        del self.open[event.id]
        self.did["of one token"] += len(prompt) == 1
        assert said == alone(self.model, tuple(prompt))[: len(said)], (owner, prompt, event)
        if event.ended != "cancelled":
            assert len(said) == NEW, event
            if len(prompt) + NEW < 250:
                self.texts[owner][self.random.randrange(2)] = (
                    prompt + said if len(prompt) > 30 else self.texts[owner][1]
                )

    def run(self, steps: int) -> Counter[str]:
        with self.session:
            for _ in range(steps):
                if len(self.open) < 5:
                    self.random.choices(
                        [self.ask, self.trace, self.cancel, lambda: None], [4, 2, 1, 5]
                    )[0]()
                self.step()
            while self.open or self.race is not None:
                self.step()
        self.did["known"] = self.prefixes.hits
        return self.did


@pytest.mark.full
@pytest.mark.parametrize(
    "seed",
    [
        0,
        pytest.param(1, marks=full),
        *(pytest.param(n, marks=weekly) for n in range(2, 30)),
    ],
)
@each_model
def test_every_answer_in_any_order_is_what_generate_says(model, seed):
    did = Fuzz(model, seed).run(200 if seed == 0 else 400)
    assert (
        did["known"] > 500
        and did["traces"] > 4
        and did["cancelled"] > 2
        and did["of one token"] > 4
    ), did


@pytest.mark.parametrize("fault", [shapes_of_the_latest_row, counted_only])
@pytest.mark.parametrize("model", ["llama", "qwen3.5"])
def test_the_fuzz_catches_keys_that_were_not_copied(model, fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        test_every_answer_in_any_order_is_what_generate_says(model, 0)
