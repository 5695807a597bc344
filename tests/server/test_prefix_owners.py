"""What one API key has sent is not seen with another: neither in `cached_tokens` nor by how soon an
answer comes.
"""

from __future__ import annotations

import httpx
import pytest
import torch
from support import tiny
from support.listed import read_in_any_parts
from support.served import TEXT, client, serving

from longdraft import Sampler
from longdraft.core import PromptSpec
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import RowPool
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.server.http.guard import Guard

pytestmark = read_in_any_parts
LONG = TEXT * 4  # more than a block of 64 tokens
TALK = [{"role": "user", "content": LONG}]
PATHS = {
    "completions": {"prompt": LONG, "max_tokens": 2, "model": "tiny"},
    "chat/completions": {"messages": TALK, "max_tokens": 2, "model": "tiny"},
    "responses": {"input": LONG, "max_output_tokens": 2, "model": "tiny"},
    "longdraft/trace": {"document": LONG, "prompt": "Why?", "method": "plain", "max_tokens": 2},
}


def known(path: str, keys: list[str], monkeypatch: pytest.MonkeyPatch, **settings) -> list[int]:
    """How many tokens of the same prompt were known, for a request with each of these keys in
    turn.
    """
    load = PrefixCache.load
    found = list[int]()

    def watched(self: PrefixCache, *given) -> int:
        found.append(load(self, *given))
        return found[-1]

    monkeypatch.setattr(PrefixCache, "load", watched)
    session = {"prefixes": PrefixCache(4096), "slots": 1024}
    with (
        serving("lookup", session=session, keys=[b"one", b"two"], **settings) as server,
        client(server) as http,
    ):
        for key in keys:
            answer = http.post(
                f"/v1/{path}", json=PATHS[path], headers={"Authorization": f"Bearer {key}"}
            )
            assert answer.status_code == 200, answer.text
            if path.endswith("completions"):
                assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == found[-1]
    assert len(found) == len(keys)
    return found


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
def test_another_key_is_told_nothing(path, monkeypatch):
    first, other, again, once_more = known(path, ["one", "two", "one", "two"], monkeypatch)
    assert first == other == 0 and again == once_more >= 64


@pytest.mark.full
@pytest.mark.parametrize("path", ["completions", "longdraft/trace"])
def test_keys_may_share(path, monkeypatch):
    first, other = known(path, ["one", "two"], monkeypatch, share_prefixes=True)
    assert first == 0 and other >= 64


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.whole
def test_an_owner_that_is_lost_would_be_noticed(path, monkeypatch):
    monkeypatch.setattr(Guard, "_owner", lambda *_: "")
    assert known(path, ["one", "two"], monkeypatch)[1] > 0


def test_without_keys_all_clients_are_one():
    def cached(http: httpx.Client) -> int:
        usage = http.post("/v1/completions", json=PATHS["completions"]).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    with serving("lookup") as server, client(server) as http, client(server) as other:
        assert (cached(http), cached(other) >= 64) == (0, True)


@torch.inference_mode()
def test_owners_share_the_room():
    """One owner's prompts make those of another leave; together they have no more blocks than one
    has alone.
    """
    prefixes = PrefixCache(96, block=16)
    prompts = tiny.prompts(65, 49)
    pool = RowPool(tiny.target("llama"), 1, 100, prefixes)

    def read(prompt: list[int], owner: str) -> int:
        pool.begin(Request(1, prompt, 1, 0, (), Sampler(), owner=owner))
        pool.read(1000, PromptSpec())
        pool.leave(0)
        return pool.reads.pop(1).known

    first, second = prompts
    assert [read(first, "a"), read(first, "b"), read(first, "b"), read(first, "a")] == [
        0,
        0,
        64,
        32,
    ]
    assert len(prefixes._blocks) == prefixes.most == 6
    assert read(second, "") == 0 and prefixes.used == 1
