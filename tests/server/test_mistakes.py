"""What is wrong with a body is said by field and reason, and /openapi.json refuses what a strict
server refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.served import TEXT, client, serving

from longdraft.server.http import mistakes

PROMPT: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 2}
USER = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 2}
RESPONSE = {"model": "tiny", "input": "hi", "max_output_tokens": 2}
PATHS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions", "input": "/v1/responses"}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(strict=True) as server, client(server) as found:
        yield found


def said(http: httpx.Client, path: str, content: str | bytes) -> tuple[str | None, str]:
    found = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert found.status_code == 400, found.text
    return found.json()["error"]["param"], found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"stop": ["a"] * 17}, "stop", "17 entries are too many: give at most 16"),
        ({"stop": [""]}, "stop.0", "0 characters are too few"),
        ({"stop": "x" * 1_000_000}, "stop", "1000000 characters are too many: give at most 256"),
        ({"stop": ["x" * 257]}, "stop.0", "257 characters are too many"),
        ({"stop": 5}, "stop", "give a text or a list"),
        ({"stop": ["a", 5]}, "stop.1", "give a text"),
        ({"prompt": [1, -1]}, "prompt.1", "greater than or equal to 0"),
        ({"prompt": []}, "prompt", "0 entries are too few"),
        ({"prompt": ["a", []]}, "prompt.1", "0 entries are too few"),
        ({"prompt": ["a", 5]}, "prompt.1", "give a text or a list"),
        ({"prompt": {"a": 1}}, "prompt", "give a text or a list"),
        ({"temperature": "hot"}, "temperature", "give a number"),
        ({"n": 2.5}, "n", "give a whole number"),
        ({"echo": 1}, "echo", "give true or false"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "match pattern"),
        ({"logit_bias": [1]}, "logit_bias", "give an object"),
        ({"stream_options": {}}, "stream_options", "needs stream=true"),
        ({"stream": True, "stream_options": 5}, "stream_options", "give an object"),
        ({"nothing": 1}, "nothing", "unknown"),
        ({"max_tokens": 0}, "max_tokens", "needs echo=true"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_mistake_is_named(http, change, name, reason):
    found, message = said(http, "/v1/completions", json.dumps(PROMPT | change))
    assert found == name and reason in message and message.startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages.0.content", "no images"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
            "required",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content",
            "give a text or a list",
        ),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages.0.role", "assistant"),
        ({"messages": []}, "messages", "0 entries"),
        ({"messages": "hi"}, "messages", "give a list"),
        ({"messages": ["hi"]}, "messages.0", "give an object"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "required"),
        ({"tools": {}}, "tools", "give a list"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "100"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_mistake_of_a_chat_is_named(http, change, name, reason):
    found, message = said(http, "/v1/chat/completions", json.dumps(CHAT | change))
    assert found == name and reason in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"model": "tiny", "prompt": }', "character 28, expecting value"),
        ('{"model": "tiny"', "character 16"),
        ("", "JSON object"),
        ("[1]", "JSON object"),
        ('{"seed": ' + "9" * 5000 + "}", "thousands of digits"),
        (b'{"model": "\xff"}', "byte 11"),
        ("[" * 100_000, "levels"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_a_body_that_cannot_be_read_is_told_why(http, content, reason):
    found, message = said(http, "/v1/completions", content)
    assert found is None and reason in message


def test_the_first_error_of_a_union_would_be_noticed(http, monkeypatch):
    monkeypatch.setattr(mistakes, "_progress", lambda place: 0)
    assert said(http, "/v1/completions", json.dumps(PROMPT | {"stop": ["a"] * 17})) == (
        "stop",
        "stop: give a text",
    )


# The document -------------------------------------------------------------------------------------

CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
REFUSED = [
    PROMPT | {"stream_options": {"include_usage": True}},
    PROMPT | {"stream": False, "stream_options": {"include_usage": True}},
    PROMPT | {"max_tokens": 0},
    PROMPT | {"prompt": ["a"] * 65},
    PROMPT | {"prompt": ["a"] * 9, "n": 8},
    PROMPT | {"prompt": [[1, 2]] * 33, "n": 2},
    PROMPT | {"logit_bias": {"x": 1}},
    PROMPT | {"logit_bias": {str(i): 1 for i in range(301)}},
    PROMPT | {"metadata": {str(i): "x" for i in range(17)}},
    PROMPT | {"prompt": [["a"]]},
    CHAT | {"top_logprobs": 2},
    CHAT | {"top_logprobs": 2, "logprobs": False},
    CHAT | {"messages": [{"role": "tool", "content": "a"}]},
    CHAT | {"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]},
    CHAT | {"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]},
    CHAT | {"messages": [{"role": "assistant"}]},
    CHAT | {"messages": [{"role": "user", "content": IMAGE}]},
    CHAT | {"continue_final_message": True, "add_generation_prompt": True},
    CHAT | {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}},
    CHAT | {"chat_template_kwargs": {"messages": []}},
    CHAT | {"chat_template_kwargs": {"a b": 1}},
    CHAT | {"chat_template_kwargs": {f"a{i}": 1 for i in range(65)}},
    RESPONSE | {"previous_response_id": "resp_1"},
    RESPONSE | {"stream_options": {"include_usage": True}},
]
TAKEN = [
    PROMPT,
    PROMPT | {"stream": True, "stream_options": {"include_usage": True}},
    PROMPT | {"max_tokens": 0, "echo": True},
    PROMPT | {"prompt": ["a"] * 8, "n": 2},
    PROMPT | {"prompt": list(range(40)), "n": 8},
    PROMPT | {"logit_bias": {"5": 1}},
    PROMPT | {"seed": None, "user": None, "min_tokens": 1},
    CHAT | {"top_logprobs": 2, "logprobs": True},
    CHAT | {"continue_final_message": True, "add_generation_prompt": False},
    CHAT | {"continue_final_message": True, "add_generation_prompt": None},
    CHAT | {"continue_final_message": True},
    CHAT | {"add_generation_prompt": True},
    RESPONSE,
]


def allows(document: dict[str, Any], path: str, body: dict[str, Any]) -> bool:
    """Whether /openapi.json describes this body."""
    from jsonschema import Draft202012Validator  # 4 s of grammars of URLs, for these tests alone

    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return Draft202012Validator(
        content["schema"] | {"components": document["components"]}
    ).is_valid(body)


def path_of(body: dict[str, Any]) -> str:
    return next(path for field, path in PATHS.items() if field in body)


@pytest.fixture(scope="module")
def document(http) -> dict[str, Any]:
    return http.get("/openapi.json").json()


@pytest.mark.parametrize(
    "body", REFUSED, ids=lambda body: str(sorted(body.items(), reverse=True))[:60]
)
def test_the_document_refuses_what_the_server_refuses(http, document, body):
    assert http.post(path_of(body), json=body).status_code == 400
    assert not allows(document, path_of(body), body)


@pytest.mark.full
@pytest.mark.parametrize(
    "body", TAKEN, ids=lambda body: str(sorted(body.items(), reverse=True))[:60]
)
def test_the_document_allows_what_the_server_takes(http, document, body):
    assert http.post(path_of(body), json=body).status_code == 200
    assert allows(document, path_of(body), body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "a", "messages": USER},
        {"prompt": "a", "tools": []},
        {"prompt": "a", "add_generation_prompt": True},
        {"messages": USER, "add_special_tokens": True},
    ],
    ids=str,
)
def test_tokens_of_one_thing_at_a_time(http, document, body):
    assert http.post("/tokenize", json=body).status_code == 400 and not allows(
        document, "/tokenize", body
    )


def test_both_kinds_of_tokens(http, document):
    for body in (
        {"prompt": "a", "messages": None},
        {"messages": USER, "add_special_tokens": False},
    ):
        assert http.post("/tokenize", json=body).status_code == 200 and allows(
            document, "/tokenize", body
        )


def test_a_document_without_rules_would_be_noticed(document):
    """As it is where each field is described alone."""
    alone = json.loads(json.dumps(document))
    for schema in alone["components"]["schemas"].values():
        schema.pop("allOf", None)
    assert sum(allows(alone, path_of(body), body) for body in REFUSED) >= 10
