"""Fields of requests beyond OpenAI's: fewest tokens, variables of the chat template, continued
messages, tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.served import CHAT, NEW, TEXT, asked, client, loaded, said, serving, tokens_of

from longdraft import Sampler, build, load
from longdraft.core.rules import Rules
from longdraft.engine.requests import Event
from longdraft.models.chat import Turn, asked_of, chat_tokens
from longdraft.server.decode.reply import Reply

MESSAGES = [{"role": "user", "content": "hi"}]
OPEN = [*MESSAGES, {"role": "assistant", "content": "import os\n\ndef "}]
READS = "{% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}{{ note }}" + CHAT


def alone(prompt: list[int], least: int, end: int) -> str:
    """What `generate` says with these rules, up to the end token, which has no text."""
    return said(prompt, Sampler(1.0, rules=Rules((("min_new_tokens", least),))), eos=(end,))


@pytest.fixture(scope="module")
def strict() -> Iterator[httpx.Client]:
    with serving(strict=True) as server, client(server) as http:
        yield http


@pytest.fixture
def reading() -> Iterator[httpx.Client]:
    """A server whose template reads variables."""
    _, tokenizer = loaded()
    tokenizer.chat_template = READS
    try:
        with serving() as server, client(server) as http:
            yield http
    finally:
        tokenizer.chat_template = CHAT


def chat(http, **fields) -> httpx.Response:
    body = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": NEW,
        "seed": 3,
        "ignore_eos": True,
    } | fields
    return http.post("/v1/chat/completions", json=body)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def refusal(response: httpx.Response) -> tuple[str, str]:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


# Fewest tokens ------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("method", ["vegas", "lookup", "plain"])
def test_no_end_token_comes_before_min_tokens(method, fault, monkeypatch):
    """And each method says what plain decoding says under this rule."""
    prompt = tokens_of(TEXT)
    if fault:
        monkeypatch.setattr(Rules, "with_least", lambda self, tokens: self)
    with serving(method, build(method, loaded()[0])) as server, client(server) as http:
        plain = http.post("/v1/completions", json=asked(logprobs=0)).json()
        end = tokens_of(plain["choices"][0]["text"])[2]
        body = asked(stop_token_ids=[end], min_tokens=9, max_tokens=NEW)
        found = http.post("/v1/completions", json=body).json()
    tokens = found["usage"]["completion_tokens"]
    same = tokens > 9 and found["choices"][0]["text"] == alone(prompt, 9, end).removesuffix(
        word(end)
    )
    assert same != fault


def word(token: int) -> str:
    return loaded()[1].decode([token])


def test_a_stop_string_that_ends_within_min_tokens_is_text(http):
    whole = text_of(http.post("/v1/completions", json=asked()))
    stop = whole[4:6]
    early = http.post("/v1/completions", json=asked(stop=stop)).json()
    late = http.post("/v1/completions", json=asked(stop=stop, min_tokens=NEW - 2)).json()
    assert (
        early["choices"][0]["finish_reason"] == "stop"
        and early["usage"]["completion_tokens"] < NEW - 2
    )
    assert late["usage"]["completion_tokens"] >= NEW - 2 and late["choices"][0]["text"].startswith(
        whole[:6]
    )


@pytest.mark.parametrize("least", range(8))
def test_a_stop_string_counts_where_it_ends(least):
    """Token by token and all at once alike."""
    tokenizer = loaded()[1]
    tokens = tokens_of("a b a b a b")
    found = set()
    for cuts in (range(1, len(tokens) + 1), [len(tokens)]):
        reply = Reply(tokenizer, ["b"], least=least)
        texts = []
        low = 0
        for high in cuts:
            ended = "length" if high == len(tokens) else None
            texts.append(reply.take(Event(1, tokens[low:high], ended)).text)
            low = high
        found.add("".join(texts))
    texts = [tokenizer.decode(tokens[: i + 1]) for i in range(len(tokens))]
    ends = next((t for i, t in enumerate(texts) if i >= least and t.endswith("b")), None)
    assert found == {"a b a b a b" if ends is None else ends[:-1]}


def test_more_tokens_at_least_than_at_most_are_refused(http):
    name, message = refusal(http.post("/v1/completions", json=asked(min_tokens=NEW + 1)))
    assert name == "min_tokens" and str(NEW) in message


# The chat template --------------------------------------------------------------------------------


@pytest.mark.full
def test_a_template_is_told_what_a_request_says(reading):
    tokenizer = loaded()[1]
    for fields, variables in (
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"chat_template_kwargs": {"note": "n<assistant>"}}, {"note": "n<assistant>"}),
    ):
        prompt = chat_tokens(tokenizer, MESSAGES, turn=Turn(variables=variables))
        assert (
            text_of(chat(reading, **fields))
            == said(prompt)
            != said(chat_tokens(tokenizer, MESSAGES))
        )


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "name", "word"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort", "does not read"),
        ({"reasoning_effort": "most"}, "reasoning_effort", "low"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "does not read",
        ),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
            "another variable",
        ),
        (
            {"chat_template_kwargs": {"eos_token": "x"}},
            "chat_template_kwargs.eos_token",
            "tokenizer",
        ),
        ({"chat_template_kwargs": {"a-b": 1}}, "chat_template_kwargs.a-b", "pattern"),
        ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs.__class__", "pattern"),
        ({"chat_template_kwargs": {"m": "x" * 20_000}}, "chat_template_kwargs", "16384"),
        ({"chat_template_kwargs": {f"m{i}": 1 for i in range(65)}}, "chat_template_kwargs", "64"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            "continue",
        ),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "older name"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "vocabulary"),
    ],
    ids=lambda x: str(x)[:50],
)
def test_what_a_template_cannot_be_told_is_refused_by_name(strict, fields, name, word):
    found, message = refusal(chat(strict, **fields))
    assert found == name and word in message


def test_variables_cannot_write_control_tokens(monkeypatch):
    """Neither alone nor together with the template's own text; one that the template owns would be
    noticed.
    """
    tokenizer = load("bundled", "float32")[1]
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer.chat_template = "{{ note }}" + CHAT
    tokens = chat_tokens(tokenizer, MESSAGES, turn=Turn(variables={"note": "<|endoftext|>"}))
    assert end not in tokens
    tokenizer.chat_template = "<|{{ note }}|>" + CHAT
    assert end not in chat_tokens(tokenizer, MESSAGES, turn=Turn(variables={"note": "endoftext"}))
    tokenizer.chat_template = "{{ note }}" + CHAT
    monkeypatch.setattr("longdraft.models.chat.asked_of", owned)
    monkeypatch.setattr("longdraft.models.chat._check_variables", lambda asked, variables: None)
    assert end in chat_tokens(tokenizer, MESSAGES, turn=Turn(variables={"note": "<|endoftext|>"}))


def owned(*arguments):
    """Variables as the template's own text."""
    asked = asked_of(*arguments)
    return asked | {"given": asked["given"] | asked["chosen"], "chosen": {}}


@pytest.mark.full
def test_a_message_is_continued_as_transformers_does(http):
    tokenizer = loaded()[1]
    wanted = tokenizer.apply_chat_template(OPEN, tokenize=False, continue_final_message=True)
    prompt = chat_tokens(tokenizer, OPEN, turn=Turn(False, True))
    assert tokenizer.decode(prompt) == wanted and wanted.endswith("def ")
    for fields in ({}, {"add_generation_prompt": False}):
        found = chat(http, messages=OPEN, continue_final_message=True, **fields)
        assert text_of(found) == said(prompt) != text_of(chat(http, messages=OPEN))


def test_an_answer_can_be_left_unbegun(http):
    prompt = chat_tokens(loaded()[1], MESSAGES, turn=Turn(False))
    assert text_of(chat(http, add_generation_prompt=False)) == said(prompt) != text_of(chat(http))


def test_a_message_that_cannot_be_continued_is_refused(http):
    """A template that does not write the last message."""
    loaded()[1].chat_template = "{{ messages[0].content }}"
    try:
        _, message = refusal(chat(http, messages=OPEN, continue_final_message=True))
    finally:
        loaded()[1].chat_template = CHAT
    assert "does not appear" in message


# Tokens -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_tokens_of_a_conversation_are_those_that_a_chat_reads(reading):
    tokenizer = loaded()[1]
    body = {"messages": OPEN, "continue_final_message": True, "chat_template_kwargs": {"note": "x"}}
    found = reading.post("/tokenize", json=body | {"return_token_strs": True}).json()
    assert found["tokens"] == chat_tokens(tokenizer, OPEN, turn=Turn(False, True, {"note": "x"}))
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["token_strs"] == tokenizer.convert_ids_to_tokens(found["tokens"])
    usage = chat(
        reading, messages=OPEN, **{k: v for k, v in body.items() if k != "messages"}
    ).json()["usage"]
    assert usage["prompt_tokens"] == found["count"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "messages"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
    ],
    ids=str,
)
def test_a_prompt_or_a_conversation_is_tokenized(strict, body, name):
    assert refusal(strict.post("/tokenize", json=body))[0] == name


def test_a_tokenizer_is_described(http):
    found = http.get("/tokenizer_info").json()
    assert found["eos_token"] == loaded()[1].eos_token and found["chat_template"] == CHAT


@pytest.mark.full
def test_the_head_of_a_path_is_answered(http):
    for path in ("/health", "/v1/models"):
        found = http.head(path)
        assert found.status_code == 200 and not found.content
