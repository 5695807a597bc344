"""Log-probabilities of long answers: bounded in number, and formatted beside everything else that the server does."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.served import TEXT, asked, chunks, client, serving, tokens_of

from longdraft.engine.requests import Event, PromptRead
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.server import pieces, service
from longdraft.server.answer import Answer
from longdraft.server.pieces import at_once, in_pieces
from longdraft.server.reply import Silent
from longdraft.server.run import Server
from longdraft.server.work import Work

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=9) | st.dictionaries(st.text(max_size=3), v, max_size=4))


@given(VALUES)
def test_pieces_are_the_json(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "FEW", 3)
        assert in_pieces(value) == at_once(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def longest_piece(monkeypatch, value: dict) -> int:
    """Characters of the longest text that is written in one call."""
    sizes = []
    monkeypatch.setattr(pieces, "at_once", lambda part: sizes.append(len(at_once(part))) or at_once(part))
    assert in_pieces(value) == at_once(value)
    return max(sizes)


def test_no_piece_is_long(monkeypatch):
    alternatives = {f"token {i}": -1.25 for i in range(21)}
    logprobs = {"tokens": ["token"] * 2000, "top_logprobs": [alternatives] * 2000}
    answer = {"choices": [{"index": i, "text": "t", "logprobs": logprobs} for i in range(2)]}
    assert longest_piece(monkeypatch, answer) < 50_000 < len(at_once(answer)) / 20
    monkeypatch.setattr(pieces, "FEW", 1000)
    assert longest_piece(monkeypatch, answer) > 200_000  # this would be noticed


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_formatted_elsewhere_is_the_same(http, monkeypatch, path, stream):
    """With all of it formatted outside the event loop, and with all of it inside."""
    body = asked(stream=stream, max_tokens=6)
    if "chat" in path:
        body |= {"messages": [{"role": "user", "content": body.pop("prompt")}], "logprobs": True, "top_logprobs": 3}
    else:
        body |= {"echo": True, "logprobs": 3}
    found = []
    for few in (0, 1 << 30):
        monkeypatch.setattr(service, "FEW_LOGPROBS", few)
        lines = [line.removeprefix("data: ") for line in http.post(path, json=body).text.splitlines() if line]
        answers = [json.loads(line) for line in lines if line != "[DONE]"]
        found.append([answer["choices"] for answer in answers])
    assert found[0] == found[1] and "top_logprobs" in json.dumps(found)


def test_every_choice_counts(server, http, monkeypatch):
    """All choices of an answer echo the prompt."""
    size = len(tokens_of(TEXT)) + 1
    monkeypatch.setattr(service, "MOST_LOGPROBS", 2 * 3 * size)
    body = asked(echo=True, logprobs=2, max_tokens=0)
    assert http.post("/v1/completions", json=body | {"n": 2}).status_code == 200
    found = http.post("/v1/completions", json=body | {"n": 3})
    assert found.status_code == 400 and f"{3 * 3 * size} log-probabilities" in found.json()["error"]["message"]


class Scored:
    """The stream of a choice whose prompt has been read, with so many log-probabilities for each token."""

    def __init__(self, prompt: list[int], vocab: int, top: int = 20):
        chance = random.Random(0)
        best = [[(chance.randrange(vocab), -9 * chance.random()) for _ in range(top)] for _ in prompt[1:]]
        found = [TokenLogprobs(token, -1.25, top) for token, top in zip(prompt[1:], best, strict=True)]
        self.event = Event(1, [5], "length", prompt=PromptRead(0, found))

    async def __aiter__(self) -> AsyncIterator[Event]:
        yield self.event

    def close(self) -> None:
        pass


@pytest.fixture
def frozen() -> Iterator[None]:
    """As `longdraft serve` does: full garbage collections leave out what was there at the start."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def longest_pause(server: Server, body: dict) -> float:
    """The slowest /health while a request is answered, in processor seconds of this process: others may be busy."""
    with ThreadPoolExecutor(1) as pool, client(server) as http:
        asking = pool.submit(lambda: client(server).post("/v1/completions", json=body))
        times = [0.0]
        while not asking.done():
            begin = time.process_time()
            assert http.get("/health").status_code == 200
            times.append(time.process_time() - begin)
        assert asking.result().status_code == 200
    return max(times)


@pytest.mark.timing
@pytest.mark.full
@pytest.mark.parametrize("stream", [True, False])
def test_the_most_log_probabilities_do_not_hold_up_others(frozen, monkeypatch, stream):
    """24,000 echoed tokens with 20 alternatives, twice: about as many as one answer may have."""
    with serving() as server:
        vocab = server.service.target.vocab
        prompt = [i * 7 % vocab for i in range(24_000)]
        scored = Scored(prompt, vocab)

        def submit(work: Work) -> Answer:
            replies = [Silent(server.service.tokenizer, []) for _ in range(work.n)]
            return Answer(server.service, work, [scored] * work.n, list(replies))  # type: ignore[list-item]

        monkeypatch.setattr(server.service, "submit", submit)
        monkeypatch.setattr(server.service, "room", 1 << 16)
        body = asked(prompt=prompt, echo=True, logprobs=20, max_tokens=0, n=2, stream=stream)
        longest = longest_pause(server, body)
        assert longest < 0.5
        monkeypatch.setattr(service, "in_pieces", at_once)
        assert longest_pause(server, body) > 2 * longest
        with client(server) as http:
            assert http.post("/v1/completions", json=body | {"n": 3}).status_code == 400


def test_the_command_leaves_what_it_loaded_out_of_garbage_collections(cli, monkeypatch):
    """One that reads all of it takes up to half a second, in which nothing is answered."""
    counts = []
    monkeypatch.setattr(Server, "run", lambda self, sockets: counts.append(gc.get_freeze_count()) or sockets[0].close())
    assert cli("serve", "-m", "tiny", "--port", "0", "--method", "plain")[0] == 0
    assert counts[0] > 10_000 and gc.get_freeze_count() == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_of_one_token_has_none_itself(http, stream):
    """Nothing comes before it that could predict it."""
    body = asked(prompt=[5], echo=True, logprobs=2, max_tokens=2, n=2, stream=stream)
    found = http.post("/v1/completions", json=body)
    assert found.status_code == 200
    answers = chunks(found) if stream else [found.json()]
    for i in (0, 1):
        parts = [c["logprobs"] for answer in answers for c in answer["choices"] if c["index"] == i and c["logprobs"]]
        values = [x for part in parts for x in part["token_logprobs"]]
        assert len(values) == 3 and values[0] is None and None not in values[1:]
