"""A request that ends while its prompt is read: what was read is kept, for its owner's next try."""

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


def known_again(kind: str, owner: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The tokens known to a second try; its keys must be those of one whole prefill."""
    monkeypatch.setattr("longdraft.models.lm.CHECKPOINT", 32)
    lm = tiny.target(kind)
    [prompt] = tiny.prompts(150)
    pool = RowPool(lm, 1, 200, PrefixCache(1000, 16))
    pool.begin(Request(1, prompt, 4, 0, (), Sampler(), owner="a"))
    pool.read(96, PromptSpec())
    pool.stop_reading()
    assert pool.entering is None
    pool.begin(Request(2, prompt, 4, 0, (), Sampler(), owner=owner))
    pool.read(1000, PromptSpec())
    whole = lm.new_cache(1, 200)
    lm.prefill(prompt[:-1], whole)
    count = len(prompt) - 1
    row = pool.whole.cache.row(0)
    for layer in row.shapes:
        for resumed, fresh in zip(row.stored(layer, 0), whole.stored(layer, 0), strict=True):
            assert torch.equal(resumed[:, :count], fresh[:, :count])
    return pool.reads[2].known


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_what_was_read_is_kept(kind, monkeypatch):
    assert known_again(kind, "a", monkeypatch) == 96


@torch.inference_mode()
def test_another_owner_does_not_find_it(monkeypatch):
    assert known_again("llama", "b", monkeypatch) == 0


@torch.inference_mode()
def test_a_prompt_that_was_dropped_is_noticed(monkeypatch):
    monkeypatch.setattr(RowPool, "stop_reading", RowPool.drop)
    assert known_again("llama", "a", monkeypatch) == 0


def test_a_cancelled_request_goes_on_at_the_next_try():
    lm = tiny.target("llama")
    short, long = tiny.prompts(20, 150)
    session = Session(lm, PlainDecoding(), 2, 200, chunk=32, prefixes=PrefixCache(1000, 16))
    first = session.submit(short, 40, eos=())
    session.step()
    left = session.submit(long, 8, eos=())
    assert session.begun(first) and not session.begun(left)
    session.step()
    assert session.begun(left) and session.cancel(left)
    session.step()
    again = session.submit(long, 8, eos=())
    tokens = list[int]()
    known = list[int]()
    while session.running or session.waiting:
        for event in session.step():
            if event.id == again:
                tokens += event.tokens
                known += [event.prompt.known] if event.prompt is not None else []
    assert known == [32]
    assert tokens == generate(lm, [long], max_new_tokens=8, eos=())[0]
