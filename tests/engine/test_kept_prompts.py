"""Blocks of a prompt are kept as soon as they are read, for its owner's later prompts."""

from __future__ import annotations

import pytest
import torch
from support import tiny

from longdraft import Sampler, Session, generate
from longdraft.core import PromptSpec
from longdraft.drafters import PlainDecoding
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import RowPool
from longdraft.prompts.prefix_cache import PrefixCache

LONG = 150
WAYS = ("cancelled", "failed", "still read")


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch: pytest.MonkeyPatch):
    """Checkpoints every 32 tokens, because these prompts are short."""
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", 32)


def request(prompt: list[int], owner: str = "a") -> Request:
    return Request(1, prompt, 4, 0, (), Sampler(), owner=owner)


def known_again(kind: str, owner: str, way: str = "cancelled", read: int = 96) -> int:
    """The tokens known to a second try; its keys must be those of one whole prefill.

    way: what has become of the first one, of which `read` tokens were read.
    """
    lm = tiny.target(kind)
    [prompt] = tiny.prompts(LONG)
    prefixes = PrefixCache(1000, 16)
    first = RowPool(lm, 1, 200, prefixes)
    first.begin(request(prompt))
    first.read(read, PromptSpec())
    if way == "cancelled":
        first.stop_reading()
        assert first.entering is None
    if way == "failed":
        first.drop()
    pool = RowPool(lm, 1, 200, prefixes) if way == "still read" else first
    pool.begin(request(prompt, owner))
    pool.read(1000, PromptSpec())
    check_keys(pool, prompt)
    if way == "still read":
        first.read(1000, PromptSpec())
        check_keys(first, prompt)
    return pool.reads[1].known


def check_keys(pool: RowPool, prompt: list[int]) -> None:
    """The keys of the first row must be those of one whole prefill."""
    whole = pool.target.new_cache(1, 200)
    pool.target.prefill(prompt[:-1], whole)
    count = len(prompt) - 1
    row = pool.whole.cache.row(0)
    for layer in row.shapes:
        for resumed, fresh in zip(row.stored(layer, 0), whole.stored(layer, 0), strict=True):
            assert torch.equal(resumed[:, :count], fresh[:, :count])


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_what_was_read_is_kept(kind, way):
    assert known_again(kind, "a", way) == 96


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS)
def test_between_checkpoints_only_a_cancelled_prompt_is_kept(way):
    assert known_again("llama", "a", way, read=60) == (48 if way == "cancelled" else 32)


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS)
def test_another_owner_does_not_find_it(way):
    assert known_again("llama", "b", way) == 0


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_that_is_not_kept_is_noticed(way, monkeypatch):
    monkeypatch.setattr(RowPool, "_keep_reading", lambda *_: None)
    monkeypatch.setattr(RowPool, "stop_reading", RowPool.drop)
    assert known_again("llama", "a", way) == 0


def kept_of_long(thin: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """The tokens known of a prompt whose states do not all fit, and what was told about it."""
    if not thin:
        monkeypatch.setattr(PrefixCache, "_thin", lambda *_: 0)
    lm = tiny.target("qwen3.5")
    [prompt] = tiny.prompts(LONG)
    told = list[str]()
    measured = PrefixCache(1000, 16)
    pool = RowPool(lm, 1, 200, measured)
    pool.begin(request(prompt))
    pool.read(32, PromptSpec())
    states = measured._taken - 2  # the room of the states after 32 tokens
    small = PrefixCache((9 + 2 * states) * 16, 16, told.append)
    pool = RowPool(lm, 1, 200, small)
    for known in (0, None):
        pool.begin(request(prompt))
        while pool.reading is not None:
            pool.read(32, PromptSpec())
            assert small._taken == sum(block.room for block in small._blocks.values())
            assert small._taken <= small.most
        check_keys(pool, prompt)
        pool.leave(0)
        assert known in (None, pool.reads[1].known)
    return pool.reads[1].known, told


@torch.inference_mode()
def test_states_make_room_for_the_rest_of_their_prompt(monkeypatch):
    assert kept_of_long(True, monkeypatch) == (128, [])


@torch.inference_mode()
def test_states_that_are_all_kept_would_leave_no_room(monkeypatch):
    known, [line] = kept_of_long(False, monkeypatch)
    assert known == 96 and line.startswith("only the first 96 of a prompt's 149 tokens")


def tokens_of(session: Session, ids: list[int]) -> tuple[list[list[int]], list[int]]:
    """The new tokens of these requests, and how many tokens of their prompts were known."""
    tokens = {id: list[int]() for id in ids}
    known = dict[int, int]()
    while session.running or session.waiting:
        for event in session.step():
            if event.id in tokens:
                tokens[event.id] += event.tokens
                if event.prompt is not None:
                    known[event.id] = event.prompt.known
    return [tokens[id] for id in ids], [known[id] for id in ids]


def test_a_cancelled_request_goes_on_at_the_next_try():
    lm = tiny.target("llama")
    short, long = tiny.prompts(20, LONG)
    session = Session(lm, PlainDecoding(), 2, 200, chunk=32, prefixes=PrefixCache(1000, 16))
    first = session.submit(short, 40, eos=())
    session.step()
    left = session.submit(long, 8, eos=())
    assert session.begun(first) and not session.begun(left)
    session.step()
    assert session.begun(left) and session.cancel(left)
    session.step()
    [tokens], known = tokens_of(session, [session.submit(long, 8, eos=())])
    assert known == [32]
    assert tokens == generate(lm, [long], max_new_tokens=8, eos=())[0]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_a_request_that_begins_alike_waits_for_no_answer(kind):
    """It came while the first one was read, and its prompt is known while that one is decoded."""
    lm = tiny.target(kind)
    short, long, tail = tiny.prompts(20, LONG, 12)
    other = long[:140] + tail
    session = Session(lm, PlainDecoding(), 3, 240, chunk=32, prefixes=PrefixCache(1000, 16))
    session.submit(short, 60, eos=())
    session.step()
    first = session.submit(long, 40, eos=())
    session.step()
    assert session.begun(first) and session.running == 1
    second = session.submit(other, 8, eos=())
    tokens, known = tokens_of(session, [first, second])
    assert known == [0, 128]
    for got, prompt, new in zip(tokens, (long, other), (40, 8), strict=True):
        assert got == generate(lm, [prompt], max_new_tokens=new, eos=())[0]
