"""With two API keys, every seeded answer is what `generate` says, whatever each key has sent
before, in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from random import Random
from threading import Lock
from typing import Any

import httpx
import pytest
from support import uncopied
from support.served import TEXT, chunks, client, loaded, quiet, said, serving, tokens_of

from longdraft import PrefixCache, Sampler, generate
from longdraft.models.text import text_of

NEW = 8
SEED = 3
KEYS = ("one", "two")
ONE = "a"  # a text of one token
PLAIN = "{{ messages[0].content }}"  # a chat template that adds nothing
ASKED = {"model": "tiny", "max_tokens": NEW, "seed": SEED, "temperature": 1.0, "ignore_eos": True}
OLLAMA = {
    "num_predict": NEW,
    "seed": SEED,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
OLLAMA |= {"repeat_penalty": 1.0}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr("longdraft.models.lm.PART", 64)  # where torch reads prompts


@pytest.fixture(autouse=True)
def plain_chats(monkeypatch):
    monkeypatch.setattr(loaded()[1], "chat_template", PLAIN)


def two_keys(**session: Any):
    options = {"slots": 1024, "batch": 2, "prefixes": PrefixCache(4096)} | session
    return serving(
        "lookup", session=options, keys=[key.encode() for key in KEYS], client_requests=64
    )


def of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@cache
def alone(text: str) -> str:
    return said(tokens_of(text), new=NEW)


@cache
def alone_until_end(text: str) -> str:
    """Where a client cannot ask to ignore end tokens."""
    return said(tokens_of(text), new=NEW, eos=None)


def post(http: httpx.Client, key: str, path: str, body: dict[str, Any]) -> Any:
    answer = http.post(path, json=body, headers=of(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def completed(http: httpx.Client, key: str, text: str, **more: Any) -> tuple[str, int]:
    """The text of a completion, and how many tokens were known."""
    found = post(http, key, "/v1/completions", ASKED | {"prompt": text} | more)
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def traced(http: httpx.Client, key: str, text: str) -> list[list[int]]:
    """The tokens of both lanes."""
    body = {"prompt": text, "method": "lookup", "max_tokens": NEW, "seed": SEED, "temperature": 1.0}
    with http.stream("POST", "/v1/longdraft/trace", json=body, headers=of(key)) as response:
        if response.status_code == 429:  # another is being recorded
            return []
        assert response.status_code == 200, response.read()
        lanes: list[list[int]] = [[], []]
        for event in chunks(response):
            if event.get("event") == "round":
                lanes[event["lane"]] += event["round"]["tokens"]
    return lanes


def by_trace(http: httpx.Client, key: str) -> str:
    first, second = traced(http, key, ONE)
    assert first == second and first
    return text_of(loaded()[1], first)


def by_echo(http: httpx.Client, key: str) -> str:
    choice = post(
        http, key, "/v1/completions", ASKED | {"prompt": ONE, "echo": True, "logprobs": 1}
    )["choices"][0]
    assert (
        choice["logprobs"]["token_logprobs"][0] is None
        and len(choice["logprobs"]["tokens"]) == 1 + NEW
    )
    assert choice["text"].startswith(ONE)
    return choice["text"].removeprefix(ONE)


def by_list(http: httpx.Client, key: str) -> str:
    body = ASKED | {"prompt": [tokens_of(ONE)], "n": 2}
    return post(http, key, "/v1/completions", body)["choices"][0]["text"]


def by_chat(http: httpx.Client, key: str) -> str:
    body = ASKED | {"messages": [{"role": "user", "content": ONE}]}
    return post(http, key, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def by_responses(http: httpx.Client, key: str) -> str:
    body = {
        "model": "tiny",
        "input": ONE,
        "max_output_tokens": NEW,
        "seed": SEED,
        "temperature": 1.0,
    }
    return post(http, key, "/v1/responses", body)["output"][0]["content"][0]["text"]


def by_ollama(http: httpx.Client, key: str) -> str:
    body = {"model": "tiny", "prompt": ONE, "raw": True, "stream": False, "options": OLLAMA}
    return post(http, key, "/api/generate", body)["response"]


def by_ollama_chat(http: httpx.Client, key: str) -> str:
    messages = [{"role": "user", "content": ONE}]
    body = {"model": "tiny", "messages": messages, "stream": False, "options": OLLAMA}
    return post(http, key, "/api/chat", body)["message"]["content"]


ENTRANCES = {
    "trace": by_trace,
    "completion": lambda http, key: completed(http, key, ONE)[0],
    "echo": by_echo,
    "list": by_list,
    "chat": by_chat,
    "responses": by_responses,
    "ollama": by_ollama,
    "ollama chat": by_ollama_chat,
}


@pytest.mark.full
def test_a_prompt_of_one_token_says_the_same_by_every_path():
    """And after each of them, both keys' known prompts are continued as `generate` continues
    them.
    """
    assert len(tokens_of(ONE)) == 1
    texts = {
        "one": "SECRETS = {\n" + '    "token": "violet-harbor-92",\n' * 12,
        "two": "x = [\n" + "    1,\n" * 90,
    }
    want = {key: alone(text) for key, text in texts.items()}
    with two_keys() as server, client(server) as http:
        for key, text in texts.items():
            assert completed(http, key, text) == (want[key], 0)
        for name, entrance in ENTRANCES.items():
            assert entrance(http, "two") in (alone(ONE), alone_until_end(ONE)), name
            for key in ("one", "two"):
                told, known = completed(http, key, texts[key])
                assert known >= 64 and told == want[key], (name, key)


@pytest.mark.full
def test_keys_that_were_not_copied_are_caught(monkeypatch):
    uncopied.shapes_of_the_latest_row(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_prompt_of_one_token_says_the_same_by_every_path()


class Fuzz:
    """Clients of two keys at once: prompts of one token, known prompts that go on, traces, streams
    that are left.
    """

    def __init__(self, http: httpx.Client):
        self.http = http
        self.did = Counter[str]()
        self.lock = Lock()

    def text(self, key: str, random: Random) -> str:
        """One token, or a beginning of this key's document with a line after it."""
        if random.random() < 0.3:
            return ONE
        lines = (
            (TEXT * 9).splitlines(keepends=True)
            if key == "one"
            else [f"    {i * i},\n" for i in range(60)]
        )
        return "".join(lines[: random.choice([12, 20, len(lines)])]) + random.choice(
            ["", "x = 1\n", "# more\n"]
        )

    def leave(self, key: str, text: str) -> None:
        """Read two chunks of a stream, and go."""
        body = ASKED | {"prompt": text, "stream": True, "max_tokens": 200}
        with self.http.stream("POST", "/v1/completions", json=body, headers=of(key)) as response:
            lines = (line for line in response.iter_lines() if line)
            found = "".join(json.loads(next(lines)[6:])["choices"][0]["text"] for _ in range(2))
        want = alone(text)
        assert want.startswith(found) or found.startswith(want), (key, text)

    def act(self, seed: int) -> None:
        random = Random(seed)
        key = random.choice(KEYS)
        text = self.text(key, random)
        act = random.choices(["ask", "trace", "leave", "echo"], [6, 3, 2, 1])[0]
        if act == "trace":
            lanes = traced(self.http, key, text)
            want = generate(
                loaded()[0], [tokens_of(text)], max_new_tokens=NEW, sampler=Sampler(1.0), seed=SEED
            )
            assert not lanes or lanes == want * 2, (key, text)
        elif act == "leave":
            self.leave(key, text)
        elif act == "echo":
            assert completed(self.http, key, text, echo=True, logprobs=0)[0] == text + alone(
                text
            ), (key, text)
        else:
            told, known = completed(self.http, key, text)
            assert told == alone(text), (key, text)
            with self.lock:
                self.did["known"] += known
        with self.lock:
            self.did[act if text != ONE else f"{act} one"] += 1


def fuzz(seed: int, acts: int, clients: int) -> Counter[str]:
    with two_keys() as server, client(server) as http:
        run = Fuzz(http)
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(run.act, range(seed, seed + acts)))
        assert quiet(server) and server.engine.failure is None
    return run.did


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, pytest.param(5000, marks=pytest.mark.weekly)])
def test_every_answer_in_any_order_is_what_generate_says(seed):
    did = fuzz(seed, 30 if seed == 0 else 400, clients=1)
    assert (
        did["known"] > 500 and did["ask one"] and did["trace"] and did["trace one"] and did["leave"]
    ), did


@pytest.mark.full
@pytest.mark.parametrize("acts", [16, pytest.param(600, marks=pytest.mark.weekly)])
def test_every_answer_beside_others_is_what_generate_says(acts):
    did = fuzz(2000, acts, clients=4)
    assert did["known"] and did["ask one"] and did["trace"] and did["leave"], did


@pytest.mark.full
@pytest.mark.parametrize("fault", [uncopied.shapes_of_the_latest_row, uncopied.counted_only])
@pytest.mark.whole
def test_the_fuzz_catches_keys_that_were_not_copied(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        fuzz(0, 30, clients=1)
