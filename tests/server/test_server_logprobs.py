"""Log-probabilities of long answers: bounded in number, and formatted beside everything else that
the server does.
"""

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
from longdraft.models.text import token_ids, token_text
from longdraft.server.decode import service
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.reply import Silent
from longdraft.server.decode.work import RequestWork
from longdraft.server.http import pieces
from longdraft.server.http.pieces import at_once, in_pieces
from longdraft.server.openai.formats import CompletionFormat, shown
from longdraft.server.uvicorn_server import Server

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=9) | st.dictionaries(st.text(max_size=3), v, max_size=4)
)


@pytest.mark.full
@given(VALUES)
def test_pieces_are_the_json(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "FEW", 3)
        assert (
            in_pieces(value)
            == at_once(value)
            == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )


def longest_piece(monkeypatch, value: dict) -> int:
    """Characters of the longest text that is written in one call."""
    sizes = []
    monkeypatch.setattr(
        pieces, "at_once", lambda part: sizes.append(len(at_once(part))) or at_once(part)
    )
    assert in_pieces(value) == at_once(value)
    return max(sizes)


@pytest.mark.full
def test_no_piece_is_long(monkeypatch):
    alternatives = {f"token {i}": -1.25 for i in range(21)}
    logprobs = {"tokens": ["token"] * 2000, "top_logprobs": [alternatives] * 2000}
    answer = {"choices": [{"index": i, "text": "t", "logprobs": logprobs} for i in range(2)]}
    assert longest_piece(monkeypatch, answer) < 50_000 < len(at_once(answer)) / 20
    monkeypatch.setattr(pieces, "FEW", 1000)
    assert longest_piece(monkeypatch, answer) > 200_000  # this would be noticed


@pytest.mark.full
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_formatted_elsewhere_is_the_same(http, monkeypatch, path, stream):
    """With all of it formatted outside the event loop, and with all of it inside."""
    body = asked(stream=stream, max_tokens=6)
    if "chat" in path:
        body |= {
            "messages": [{"role": "user", "content": body.pop("prompt")}],
            "logprobs": True,
            "top_logprobs": 3,
        }
    else:
        body |= {"echo": True, "logprobs": 3}
    found = []
    for few in (0, 1 << 30):
        monkeypatch.setattr(service, "FEW_LOGPROBS", few)
        lines = [
            line.removeprefix("data: ")
            for line in http.post(path, json=body).text.splitlines()
            if line
        ]
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
    assert (
        found.status_code == 400
        and f"{3 * 3 * size} log-probabilities" in found.json()["error"]["message"]
    )


# Characters that several tokens write, and tokens of equal texts ----------------------------------

SPLIT = "x = '漢字🙂'  # é\n"


def echoed(http, stream: bool, text: str = SPLIT, **more) -> tuple[str, dict]:
    """A text as it is echoed with its log-probabilities, and what continues it."""
    body = asked(prompt=text, echo=True, logprobs=20, stream=stream, max_tokens=4, **more)
    found = http.post("/v1/completions", json=body)
    choices = [answer["choices"][0] for answer in (chunks(found) if stream else [found.json()])]
    scored = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return "".join(c["text"] for c in choices), {
        key: [x for part in scored for x in part[key]] for key in scored[0]
    }


@pytest.mark.parametrize("stream", [True, False])
def test_offsets_are_those_of_the_text(http, stream):
    """Each whole token is found in the text where it is said to begin, and parts where their
    character begins.
    """
    said, scored = echoed(http, stream)
    assert said.startswith(SPLIT) and max(scored["text_offset"]) < len(said)
    tokens = list(zip(scored["tokens"], scored["text_offset"], strict=True))
    assert sum("\ufffd" in token for token, _ in tokens) > 6 and scored["text_offset"] == sorted(
        scored["text_offset"]
    )
    assert all(said[offset:].startswith(token) for token, offset in tokens if "\ufffd" not in token)
    assert {said[offset] for token, offset in tokens[:-4] if "\ufffd" in token} >= {*"漢字🙂"}


@pytest.mark.parametrize("stream", [True, False])
def test_no_alternative_is_lost(http, stream):
    """After a part of a character many alternatives are parts, whose texts are equal."""
    _, scored = echoed(http, stream)
    assert {len(top) for top in scored["top_logprobs"][1:]} <= {20, 21}  # with the token itself
    assert any(key.startswith("token_id:") for top in scored["top_logprobs"][1:] for key in top)
    for token, own, top in zip(
        *(scored[k][1:] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert top[token] == own


@pytest.mark.parametrize("stream", [True, False])
def test_a_part_of_a_character_has_its_byte(http, server, stream):
    """In a chat: the bytes of its tokens together are the text's."""
    tokens = token_ids(server.service.tokenizer, "漢")
    assert len(tokens) > 1
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 3,
        "stream": stream,
    }
    body |= {"logprobs": True, "top_logprobs": 20, "ignore_eos": True, "temperature": 0}
    for token, byte in zip(tokens, "漢".encode(), strict=True):
        found = http.post("/v1/chat/completions", json=body | {"logit_bias": {str(token): 100}})
        choices = [answer["choices"][0] for answer in (chunks(found) if stream else [found.json()])]
        entries = [
            x for choice in choices for x in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert [x["bytes"] for x in entries] == [[byte]] * 3 and {x["token"] for x in entries} == {
            "\ufffd"
        }
        assert all(len(x["top_logprobs"]) == 20 for x in entries)


def test_of_equal_texts_the_token_itself_has_the_text():
    words = {1: b"a", 2: b"a", 3: b"b", 4: b"\xe6", 5: b"\xbc"}
    top = CompletionFormat("", 0, "", words.__getitem__, 5)._top
    best = [(1, -0.5), (4, -1.0), (5, -2.0), (3, -3.0), (2, -4.0)]
    assert top(TokenLogprobs(2, -4.0, best)) == {
        "token_id:1": -0.5,
        "\ufffd": -1,
        "token_id:5": -2,
        "b": -3,
        "a": -4,
    }
    assert top(TokenLogprobs(3, -9.0, best[:3])) == {
        "a": -0.5,
        "\ufffd": -1,
        "token_id:5": -2,
        "b": -9,
    }


def test_what_was_wrong_is_caught(http, monkeypatch):
    """Texts in the place of bytes, alternatives by text alone, and offsets by the lengths of
    tokens.
    """

    def by_length(tokenizer, tokens):
        return [sum(len(token_text(tokenizer, t)) for t in tokens[:i]) for i in range(len(tokens))]

    monkeypatch.setattr(service, "offsets_of", by_length)
    with pytest.raises(AssertionError):
        test_offsets_are_those_of_the_text(http, False)
    by_text = lambda self, x: {  # noqa: E731
        shown(self.word(t)): p for t, p in [*reversed(x.top), (x.token, x.logprob)]
    }
    monkeypatch.setattr(CompletionFormat, "_top", by_text)
    with pytest.raises(AssertionError):
        test_no_alternative_is_lost(http, False)


class Scored:
    """The stream of a choice whose prompt has been read, with so many log-probabilities for each
    token.
    """

    def __init__(self, prompt: list[int], vocab: int, top: int = 20):
        chance = random.Random(0)
        best = [
            [(chance.randrange(vocab), -9 * chance.random()) for _ in range(top)]
            for _ in prompt[1:]
        ]
        found = [
            TokenLogprobs(token, -1.25, top) for token, top in zip(prompt[1:], best, strict=True)
        ]
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
    """The slowest /health while a request is answered, in processor seconds of this process: others
    may be busy.
    """
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
@pytest.mark.weekly
def test_the_most_log_probabilities_do_not_hold_up_others(frozen, monkeypatch, stream):
    """24,000 echoed tokens with 20 alternatives, twice: about as many as one answer may have."""
    with serving() as server:
        vocab = server.service.target.vocab
        prompt = [i * 7 % vocab for i in range(24_000)]
        scored = Scored(prompt, vocab)

        def submit(work: RequestWork) -> Answer:
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


@pytest.mark.full
def test_the_command_leaves_what_it_loaded_out_of_garbage_collections(cli, monkeypatch):
    """One that reads all of it takes up to half a second, in which nothing is answered."""
    counts = []
    monkeypatch.setattr(
        Server,
        "run",
        lambda self, sockets: counts.append(gc.get_freeze_count()) or sockets[0].close(),
    )
    assert cli("serve", "-m", "tiny", "--port", "0", "--method", "plain")[0] == 0
    assert counts[0] > 10_000 and gc.get_freeze_count() == 0


@pytest.mark.full
@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_of_one_token_has_none_itself(http, stream):
    """Nothing comes before it that could predict it."""
    body = asked(prompt=[5], echo=True, logprobs=2, max_tokens=2, n=2, stream=stream)
    found = http.post("/v1/completions", json=body)
    assert found.status_code == 200
    answers = chunks(found) if stream else [found.json()]
    for i in (0, 1):
        parts = [
            c["logprobs"]
            for answer in answers
            for c in answer["choices"]
            if c["index"] == i and c["logprobs"]
        ]
        values = [x for part in parts for x in part["token_logprobs"]]
        assert len(values) == 3 and values[0] is None and None not in values[1:]
