"""Tools over HTTP: answers with calls and reasoning, whole and streamed, and the requests that ask
for them.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import httpx
import pytest
from support import formats_of_calls
from support.formats_of_calls import CITY, HERMES, QWEN3, R1, B, R
from support.served import CHAT, chunks, client, loaded, serving

from longdraft.models.chat import chat_tokens
from longdraft.models.text import token_ids
from longdraft.server.decode.reply import Delta

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather", "parameters": CITY},
}
USER = {"role": "user", "content": "How is it in Bern?"}
BODY: dict[str, Any] = {"model": "tiny", "messages": [USER], "tools": [WEATHER], "max_tokens": 200}
TWO = f"I look.\n<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{R}\n</tool_call>"


def streamed(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        return chunks(response)


def put_together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A message from the chunks of one choice, as clients do it."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for delta in (part["choices"][0]["delta"] for part in parts):
        for key in ("content", "reasoning_content"):
            message[key] += delta.get(key) or ""
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(message["calls"]) and piece["type"] == "function"
                message["calls"].append([piece["id"], piece["function"]["name"], ""])
            else:
                assert set(piece) == {"index", "function"} and set(piece["function"]) == {
                    "arguments"
                }
            message["calls"][piece["index"]][2] += piece["function"]["arguments"]
    return message


def test_an_answer_has_its_calls(http, says):
    asked = says(HERMES, TWO)
    choice = http.post("/v1/chat/completions", json=BODY | {"logprobs": True}).json()["choices"][0]
    message = choice["message"]
    assert (
        message["content"] == "I look."
        and message["role"] == "assistant"
        and choice["finish_reason"] == "tool_calls"
    )
    assert [json.loads(c["function"]["arguments"]) for c in message["tool_calls"]] == [
        {"city": "Bern"},
        {"city": "Rome"},
    ]
    ids = [call["id"] for call in message["tool_calls"]]
    assert all(re.fullmatch("call_[0-9a-f]{24}", id) for id in ids) and len(set(ids)) == 2
    assert all(
        set(c) == {"id", "type", "function"} and c["function"]["name"] == "weather"
        for c in message["tool_calls"]
    )
    assert len(choice["logprobs"]["content"]) == len(token_ids(loaded()[1], TWO))
    assert "The weather" in loaded()[1].decode(asked[0]["prompt"])
    parts = streamed(http, BODY | {"n": 2, "logprobs": True})
    for index in (0, 1):
        mine = [part for part in parts if part["choices"][0]["index"] == index]
        found = put_together(mine)
        assert (
            found["content"] == message["content"]
            and mine[-1]["choices"][0]["finish_reason"] == "tool_calls"
        )
        assert [call[1:] for call in found["calls"]] == [
            list(c["function"].values()) for c in message["tool_calls"]
        ]
        assert sum("tool_calls" in part["choices"][0]["delta"] for part in mine) > 4
        logprobs = [
            x for p in mine for x in (p["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert logprobs == choice["logprobs"]["content"]


def test_a_chunk_is_about_one_call(http, says, monkeypatch):
    """However many tokens come at once: LlamaIndex reads only the first call of a chunk."""

    def most() -> int:
        parts = streamed(http, BODY | {"logprobs": True})
        assert [c[2] for c in put_together(parts)["calls"]] == [
            '{"city": "Bern"}',
            '{"city": "Rome"}',
        ]
        assert put_together(parts)["content"] == "I look."
        logprobs = [
            len(part["choices"][0]["logprobs"]["content"])
            for part in parts
            if part["choices"][0]["logprobs"]
        ]
        assert sum(logprobs) == len(token_ids(loaded()[1], TWO))
        finishes = [part["choices"][0]["finish_reason"] for part in parts]
        assert finishes[-1] == "tool_calls" and not any(finishes[:-1])
        return max(len(part["choices"][0]["delta"].get("tool_calls", [])) for part in parts)

    says(HERMES, TWO, at_once=200)
    assert most() == 1
    monkeypatch.setattr(Delta, "by_calls", lambda self: [self])
    assert most() == 2


def test_without_content_it_is_null(http, says):
    says(HERMES, f"<tool_call>\n{B}\n</tool_call>\n")
    message = http.post("/v1/chat/completions", json=BODY).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1
    says(HERMES, "")
    message = http.post("/v1/chat/completions", json=BODY).json()["choices"][0]["message"]
    assert (
        message["content"] == ""
        and "tool_calls" not in message
        and "reasoning_content" not in message
    )


@pytest.mark.parametrize("change", [{"tools": []}, {"tool_choice": "none"}], ids=str)
def test_where_no_tool_is_offered_nothing_is_a_call(http, says, change):
    asked = says(HERMES, TWO)
    choice = http.post("/v1/chat/completions", json=BODY | change).json()["choices"][0]
    assert choice["message"]["content"] == TWO and choice["finish_reason"] == "stop"
    assert "The weather" not in loaded()[1].decode(asked[0]["prompt"])


def test_at_most_one_call(http, says):
    says(HERMES, TWO)
    body = BODY | {"parallel_tool_calls": False}
    whole = http.post("/v1/chat/completions", json=body).json()
    [call] = whole["choices"][0]["message"]["tool_calls"]
    assert (
        call["function"]["arguments"] == '{"city": "Bern"}'
        and whole["choices"][0]["finish_reason"] == "tool_calls"
    )
    parts = streamed(http, body | {"stream_options": {"include_usage": True}})
    assert [c[1:] for c in put_together(parts[:-1])["calls"]] == [list(call["function"].values())]
    assert (
        parts[-1]["usage"]["completion_tokens"]
        == whole["usage"]["completion_tokens"]
        < len(token_ids(loaded()[1], TWO))
    )


def test_a_cut_call_ends_with_length(http, says):
    says(HERMES, TWO[: TWO.index("Bern")], "length")
    choice = http.post("/v1/chat/completions", json=BODY).json()["choices"][0]
    assert choice["finish_reason"] == "length" and len(choice["message"]["tool_calls"]) == 1


CITIES = ["Bern", "Rome", "Ulm"]  # a model that has seen no calls would write a text without an end
SHORT = deepcopy(WEATHER)
SHORT["function"]["parameters"] = CITY | {
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
}
NOT: dict[str, Any] = {"type": "object", "properties": {"a": {"not": {}}}}
FORCED = [
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
]


def with_template(template: str) -> Any:
    tokenizer = deepcopy(loaded()[1])
    tokenizer.chat_template = template
    return tokenizer


def answers(template: str, change: dict, **more) -> list[dict]:
    """What the real model answers under a template."""
    with serving(session={"slots": 1024}) as server, client(server) as http:
        server.service.tokenizer = with_template(template)
        body = (
            BODY
            | {"seed": 5, "n": 3, "tools": [SHORT], "parallel_tool_calls": False}
            | change
            | more
        )
        found = http.post("/v1/chat/completions", json=body)
        assert found.status_code == 200, found.text
        return found.json()["choices"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("template", "change"),
    [
        pytest.param(
            template, change, marks=pytest.mark.weekly if i and template != "HERMES" else ()
        )
        for template in ("HERMES", "LISTED", "LLAMA", "CODER")
        for i, change in enumerate(FORCED)
    ],
    ids=str,
)
def test_a_call_can_be_required(template, change):
    """The bundled model knows nothing of calls: the grammar alone makes them, and their arguments
    follow the schema.
    """
    for choice in answers(vars(formats_of_calls)[template], change):
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert (
            call["function"]["name"] == "weather"
            and json.loads(call["function"]["arguments"])["city"] in CITIES
        )


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "once"), [(FORCED[0], False), (FORCED[1], True)], ids=["required", "named"]
)
def test_a_named_function_is_called_once(change, once):
    """A model that knows nothing of calls goes on with further ones wherever the grammar lets
    it.
    """
    found = answers(formats_of_calls.HERMES, change, parallel_tool_calls=True, n=4, max_tokens=100)
    assert all(len(choice["message"]["tool_calls"]) == 1 for choice in found) is once
    assert not once or all(choice["finish_reason"] == "tool_calls" for choice in found)


@pytest.mark.full
def test_required_means_one_call_unless_parallel_calls_are_asked_for():
    ask = {"n": 4, "max_tokens": 100, "parallel_tool_calls": None}
    found = answers(formats_of_calls.HERMES, FORCED[0], **ask)
    assert all(len(choice["message"]["tool_calls"]) == 1 for choice in found)
    assert all(choice["finish_reason"] == "tool_calls" for choice in found)


@pytest.mark.full
def test_a_response_format_leaves_room_for_calls_and_nothing_else():
    """With tools to choose from, an answer is a call or text of the structure."""
    structure = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"enum": ["red", "green"]}},
    }
    for choice in answers(formats_of_calls.HERMES, {"response_format": structure}, n=8):
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) in ("red", "green")
        else:
            assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            {"tool_choice": {"type": "function", "function": {"name": "rain"}}},
            400,
            "no function 'rain'",
        ),
        ({"tool_choice": "required", "tools": []}, 400, "needs tools"),
        ({"tool_choice": "maybe"}, 400, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, 400, "two functions have the name 'weather'"),
        (
            {"tool_choice": "required", "ignore_eos": True},
            400,
            "ignore_eos: a structured answer ends",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"properties": {"a": {"not": {}}}},
                        },
                    }
                ]
            },
            400,
            "Unimplemented keys",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                }
            },
            400,
            "not",
        ),
        ({"structured_outputs": {"regex": "a"}}, 400, "only JSON and choices"),
        (
            {"messages": [USER | {"reasoning_content": "x"}]},
            400,
            "reasoning_content: it is the assistant's",
        ),
    ],
    ids=lambda x: str(x)[:50],
)
def test_what_cannot_be_done_is_refused_in_one_line(http, says, change, status, words):
    says(HERMES, TWO)
    refused = http.post("/v1/chat/completions", json=BODY | change)
    message = refused.json()["error"]["message"]
    assert refused.status_code == status and words in message and "\n" not in message


def test_tags_refuse_what_they_cannot_enforce_in_one_line(http, says):
    says(formats_of_calls.CODER, TWO)
    function = {
        "name": "f",
        "strict": True,
        "parameters": {"properties": {"a": {"type": "string", "format": "uri"}}},
    }
    refused = http.post(
        "/v1/chat/completions", json=BODY | {"tools": [{"type": "function", "function": function}]}
    )
    message = refused.json()["error"]["message"]
    assert (
        refused.status_code == 400
        and "parameter 'a': its format 'uri' cannot be enforced" in message
    )


@pytest.mark.parametrize("stop", ["Bern", '"', "\n", "so"])
def test_stop_strings_cut_neither_reasoning_nor_arguments(http, says, stop):
    says(QWEN3, f"<think>\nso Bern\n</think>\n\n<tool_call>\n{B}\n</tool_call>", at_once=5)
    body = BODY | {"stop": [stop]}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert (
        choice["finish_reason"] == "tool_calls"
        and choice["message"]["reasoning_content"] == "so Bern"
    )
    assert [c["function"]["arguments"] for c in choice["message"]["tool_calls"]] == [
        '{"city": "Bern"}'
    ]
    assert [call[2] for call in put_together(streamed(http, body))["calls"]] == ['{"city": "Bern"}']


def test_calls_cannot_be_required_in_an_unknown_format(http, says):
    says(CHAT + "{{ tools }}")
    refused = http.post("/v1/chat/completions", json=BODY | {"tool_choice": "required"})
    assert (
        "how this model's chat template writes calls is not known"
        in refused.json()["error"]["message"]
    )


def test_what_a_client_parsed_may_come_back_and_is_not_read(http, says):
    """OpenAI's packages keep it in messages and calls beside the text."""
    asked = says(HERMES, TWO)
    for extra in ({}, {"x": [1]}):
        function = {"name": "weather", "arguments": '{"city": "Bern"}'} | (
            {"parsed_arguments": extra} if extra else {}
        )
        call = {"id": "a", "type": "function", "function": function}
        said = {"role": "assistant", "content": "I look.", "tool_calls": [call]} | (
            {"parsed": extra} if extra else {}
        )
        result = {"role": "tool", "tool_call_id": "a", "content": "Sunny."}
        found = http.post("/v1/chat/completions", json=BODY | {"messages": [USER, said, result]})
        assert found.status_code == 200, found.text
        part = {"type": "output_text", "text": "I look."} | ({"parsed": extra} if extra else {})
        items = [
            USER,
            {"role": "assistant", "content": [part]},
            {"type": "function_call", "call_id": "a", **function},
        ]
        found = http.post(
            "/v1/responses", json={"model": "tiny", "input": items, "max_output_tokens": 20}
        )
        assert found.status_code == 200, found.text
    assert asked[0]["prompt"] == asked[2]["prompt"] and asked[1]["prompt"] == asked[3]["prompt"]


@pytest.mark.parametrize("template", [QWEN3, R1], ids=["by the model", "by the prompt"])
def test_reasoning_is_apart(http, says, template):
    said = "Why?\nSo.\n</think>\n\n" + TWO
    says(template, said if template == R1 else "<think>\n" + said)
    whole = http.post("/v1/chat/completions", json=BODY).json()
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "Why?\nSo." and message["content"] == "I look."
    assert (
        3
        < whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        < whole["usage"]["completion_tokens"]
    )
    found = put_together(streamed(http, BODY))
    assert (found["reasoning_content"], found["content"]) == (
        message["reasoning_content"],
        "I look.",
    )
    assert len(found["calls"]) == len(message["tool_calls"]) == 2


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content", "thinking", ""])
def test_earlier_reasoning_is_given_as_the_template_reads_it(http, says, field, read):
    template = QWEN3.replace("reasoning_content", read) if read else HERMES
    asked = says(template, "Yes.")
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
    }
    answer = {"role": "assistant", "content": None, field: "Because so.", "tool_calls": [called]}
    messages = [USER, answer, {"role": "tool", "tool_call_id": "call_1", "content": "Rain"}]
    assert http.post("/v1/chat/completions", json=BODY | {"messages": messages}).status_code == 200
    plain = [USER, answer | {"content": ""} | ({read: "Because so."} if read else {}), messages[2]]
    plain[1] = {
        key: value
        for key, value in plain[1].items()
        if key in ("role", "content", "tool_calls", read)
    }
    tokenizer = deepcopy(loaded()[1])
    tokenizer.chat_template = template
    assert asked[0]["prompt"] == chat_tokens(tokenizer, plain, [WEATHER])
    assert ("Because so." in tokenizer.decode(asked[0]["prompt"])) == bool(read)
