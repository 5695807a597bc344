"""Special tokens that a prompt spells: text, unless the server's owner and the request say so."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.served import TEXT, asked, client, loaded, said, serving, tokens_of

from longdraft.models.text import token_ids

SPECIAL = f"{TEXT}<|endoftext|>import"


@pytest.fixture(scope="module")
def trusting() -> Iterator[httpx.Client]:
    with serving("lookup", parse_special=True) as server, client(server) as http:
        yield http


def parsed() -> list[int]:
    """The prompt with the token."""
    tokens = token_ids(loaded()[1], SPECIAL, control=True)
    assert loaded()[1].eos_token_id in tokens and tokens != tokens_of(SPECIAL)
    return tokens


def text(http: httpx.Client, **fields) -> str:
    found = http.post("/v1/completions", json=asked(prompt=SPECIAL, **fields))
    assert found.status_code == 200, found.text
    return found.json()["choices"][0]["text"]


def test_a_trusted_client_may_spell_tokens(trusting):
    assert text(trusting, parse_special=True) == said(parsed())
    assert text(trusting) == text(trusting, parse_special=False) == said(tokens_of(SPECIAL))


def test_another_server_refuses(http):
    found = http.post("/v1/completions", json=asked(prompt=SPECIAL, parse_special=True))
    assert found.status_code == 400 and "--parse-special" in found.text
    assert text(http, parse_special=False) == said(tokens_of(SPECIAL))


def raw(http: httpx.Client) -> int:
    body = {"model": "tiny", "prompt": SPECIAL, "raw": True, "options": {"num_predict": 1}}
    return http.post("/api/generate", json=body | {"stream": False}).json()["prompt_eval_count"]


def test_ollamas_raw_prompts(http, trusting):
    assert raw(trusting) == len(parsed())
    assert raw(http) == len(tokens_of(SPECIAL)) != len(parsed())


@pytest.mark.parametrize("special", [False, True])
def test_a_chat_never_spells_tokens(http, trusting, special):
    body = {"model": "tiny", "messages": [{"role": "user", "content": SPECIAL}], "max_tokens": 1}
    asked = [
        server.post("/v1/chat/completions", json=body | {"parse_special": special})
        for server in (http, trusting)
    ]
    counts = {found.json()["usage"]["prompt_tokens"] for found in asked}
    assert len(counts) == 1 and counts.pop() > len(tokens_of(SPECIAL))
    assert asked[1].headers["x-longdraft-ignored"] == "parse_special"


def test_the_texts_around_a_gap_are_plain(trusting):
    found = trusting.post("/v1/completions", json=asked(suffix="x", parse_special=True))
    assert found.status_code == 400 and "parse_special" in found.text
