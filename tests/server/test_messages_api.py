"""Anthropic's Messages API: the chats of OpenAI's, in its shape, for Claude Code and its SDK."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest
from support.formats_of_calls import CITY, HERMES, MISTRAL, QWEN3, R1, B, R
from support.scripted import Script
from support.served import CHAT, NEW, TEXT, client, loaded, serving

from longdraft.engine.requests import Event
from longdraft.server.anthropic.anthropic_schema import MessagesRequest
from longdraft.server.anthropic.content_blocks import ContentBlocks
from longdraft.server.anthropic.conversation import messages_of

WEATHER = {"name": "weather", "description": "The weather", "input_schema": CITY}
USER = [{"role": "user", "content": "How is it in Bern?"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 200}
SAID = (
    "<think>\nWhy?\n</think>\n\nI "
    f"look.\n<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{R}\n</tool_call>"
)
SAMPLED = {"max_tokens": NEW, "seed": 3, "ignore_eos": True, "temperature": 0.7}


def post(http: httpx.Client, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {key: value for key, value in (BODY | fields).items() if value is not None}
    return http.post(path, json=body, params={"beta": "true"})


def message(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = post(http, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def events_of(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    body = BODY | fields | {"stream": True}
    with http.stream("POST", "/v1/messages", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [f"event: {e['type']}" for e in events] == lines[::2]
    return events


def followed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as a client that follows the events has it; each event is where it may be."""
    assert [e["type"] for e in events[:2]] == ["message_start", "ping"]
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    built = deepcopy(events[0]["message"])
    assert built["content"] == [] and built["stop_reason"] is None
    is_open = False
    for event in events[2:-2]:
        if event["type"] == "ping":
            continue
        index = event["index"]
        if event["type"] == "content_block_start":
            assert not is_open and index == len(built["content"])
            is_open = True
            block = deepcopy(event["content_block"])
            built["content"].append(block)
            partial = ""
            continue
        assert is_open and index == len(built["content"]) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use" and partial:
                block["input"] = json.loads(partial)
            continue
        assert event["type"] == "content_block_delta"
        delta = event["delta"]
        kinds = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
        assert kinds.get(delta["type"], "tool_use") == block["type"]
        if delta["type"] == "input_json_delta":
            partial += delta["partial_json"]
        else:
            field = delta["type"].removesuffix("_delta")
            block[field] += delta[field]
    assert not is_open and built["content"]
    usage = built["usage"] | events[-2]["usage"]
    return built | events[-2]["delta"] | {"usage": usage}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without ids, which are drawn."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {k: v for k, v in message.items() if k != "id"} | {"content": blocks}


def read(**fields: Any) -> list[dict[str, Any]]:
    return messages_of(MessagesRequest.model_validate(BODY | fields))


# Answers ------------------------------------------------------------------------------------------


def chat_of(http: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "tiny", "messages": messages} | SAMPLED
    return http.post("/v1/chat/completions", json=body).json()


@pytest.mark.parametrize("fault", [False, True])
def test_an_answer_is_that_of_the_same_chat(http, fault):
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    texts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    said = [
        {"role": "user", "content": texts},
        {"role": "user", "content": TEXT},
        {"role": "system", "content": "Now."},
    ]
    found = message(http, system=system, messages=said, **SAMPLED)
    chat = chat_of(
        http,
        [
            {"role": "system", "content": "Be brief.\n\nBe kind."},
            {"role": "user", "content": TEXT if fault else f"a\n\n{TEXT}"},
            {"role": "system", "content": "Now."},
        ],
    )
    assert (found["content"][0]["text"] == chat["choices"][0]["message"]["content"]) != fault
    assert found["stop_reason"] == "max_tokens" and found["stop_sequence"] is None
    assert found["id"].startswith("msg_") and found["model"] == "tiny"
    assert found["type"] == "message" and found["role"] == "assistant"
    assert found["usage"]["output_tokens"] == NEW


@pytest.mark.parametrize("at_once", [1, 3, 1000])
@pytest.mark.parametrize("ended", ["eos", "length"])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        (QWEN3, SAID),
        (QWEN3, "Just text."),
        (QWEN3, ""),
        (QWEN3, "<think>\nOnly this"),
        (QWEN3, SAID[: SAID.index("I look")]),
        (HERMES, f"<tool_call>\n{B}\n</tool_call>"),
        (R1, "Why?\n</think>\n\nI look."),
    ],
    ids=range(7),
)
def test_events_are_the_message(http, says, template, text, ended, at_once):
    says(template, text, ended, at_once)
    whole = message(http, tools=[WEATHER])
    events = events_of(http, tools=[WEATHER])
    assert plain(followed(events)) == plain(whole)
    assert all(key in whole["usage"] for key in ("cache_read_input_tokens", "input_tokens"))


def broken_events(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "stays open":
        monkeypatch.setattr(ContentBlocks, "_close", lambda self: iter(()))
    elif fault == "index":
        monkeypatch.setattr(ContentBlocks, "_index", property(lambda self: 0))
    else:
        monkeypatch.setattr(ContentBlocks, "_empty", lambda self, kind: {"type": "text"})


@pytest.mark.parametrize("fault", ["stays open", "index", "kind"])
def test_a_wrong_order_is_caught(http, says, monkeypatch, fault):
    says(QWEN3, SAID)
    broken_events(monkeypatch, fault)
    with pytest.raises((AssertionError, KeyError)):
        followed(events_of(http, tools=[WEATHER]))


def test_blocks_come_in_the_models_order(http, says):
    says(QWEN3, SAID)
    found = message(http, tools=[WEATHER])
    thought, text, bern, rome = found["content"]
    assert thought["thinking"] == "Why?" and thought["signature"]
    assert text == {"type": "text", "text": "I look."}
    assert bern["name"] == "weather" and bern["input"] == {"city": "Bern"}
    assert rome["input"] == {"city": "Rome"} and found["stop_reason"] == "tool_use"
    assert bern["id"].startswith("toolu_") and bern["id"] != rome["id"]


def test_a_cut_call_has_no_input(http, says):
    says(HERMES, f"<tool_call>\n{B}"[:-8], "length")
    found = message(http, tools=[WEATHER])
    assert found["stop_reason"] == "max_tokens"
    assert found["content"][-1]["type"] == "tool_use" and found["content"][-1]["input"] == {}
    events = events_of(http, tools=[WEATHER])
    assert any("partial_json" in event.get("delta", {}) for event in events)


def test_a_stop_sequence_is_named(http, says):
    says(CHAT, "one two three")
    found = message(http, stop_sequences=["three", " two"])
    assert found["content"] == [{"type": "text", "text": "one"}]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", " two")
    last = events_of(http, stop_sequences=[" two"])[-2]
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " two"}
    assert message(http)["stop_reason"] == "end_turn"


def test_an_error_in_a_stream_is_its_last_event(server, http, says, monkeypatch):
    says(CHAT, "one two three")
    failing = Script("one two three", "eos")
    failing.events[1:] = [Event(1, [], "failed")]
    monkeypatch.setattr(server.engine, "submit", lambda **given: failing)
    *_, last = events_of(http)
    assert last["type"] == "error" and last["error"]["type"] == "api_error"
    response = post(http)
    assert response.status_code == 500 and response.json()["type"] == "error"


# Requests -----------------------------------------------------------------------------------------


def test_tools_go_around(http, says):
    """Blocks of an answer are sent back as they came, with results of every form."""
    asked = says(QWEN3, SAID)
    answer = message(http, tools=[WEATHER])
    bern, rome = (block["id"] for block in answer["content"][-2:])
    results = [
        {"type": "tool_result", "tool_use_id": bern, "content": "Sunny"},
        {
            "type": "tool_result",
            "tool_use_id": rome,
            "is_error": True,
            "content": [{"type": "text", "text": "No such place"}],
        },
        {"type": "text", "text": "Go on."},
    ]
    history = [
        *USER,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results},
    ]
    *_, user, said, sunny, error, last = read(
        messages=[{"role": "system", "content": "s"}, *history]
    )
    assert user["role"] == "user" and said["content"] == "I look."
    assert said["reasoning_content"] == "Why?"
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [
        {"city": "Bern"},
        {"city": "Rome"},
    ]
    assert sunny == {
        "role": "tool",
        "tool_call_id": bern.removeprefix("toolu_"),
        "content": "Sunny",
    }
    assert error["content"] == "Error: No such place"
    assert last == {"role": "user", "content": "Go on."}
    message(http, tools=[WEATHER], messages=history)
    prompt = loaded()[1].decode(asked[-1]["prompt"])
    assert "<think>\nWhy?" in prompt and "Sunny" in prompt and "Error: No such place" in prompt


def test_mistrals_ids_have_nine_digits(http, says):
    """Its templates accept no others."""
    says(MISTRAL, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}}]')
    call = message(http, tools=[WEATHER])["content"][-1]
    history = [*USER, {"role": "assistant", "content": [call]}]
    assert len(read(messages=history)[-1]["tool_calls"][0]["id"]) == 9


@pytest.mark.parametrize(
    ("choice", "wanted", "many"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "tool", "name": "weather"}, "weather", False),
        ({"type": "none"}, "none", True),
    ],
    ids=str,
)
def test_tool_choice(choice, wanted, many):
    offer = MessagesRequest.model_validate(BODY | {"tools": [WEATHER], "tool_choice": choice}).offer
    assert offer.choice == wanted and offer.many == many
    assert bool(offer.tools) == (wanted != "none")


def test_none_hides_the_tools(http, says):
    asked = says(HERMES, f"<tool_call>\n{B}\n</tool_call>")
    found = message(http, tools=[WEATHER], tool_choice={"type": "none"})
    assert found["stop_reason"] == "end_turn" and found["content"][0]["type"] == "text"
    assert "The weather" not in loaded()[1].decode(asked[0]["prompt"])


def test_an_answer_that_begins_the_models_is_continued(http, says):
    asked = says(CHAT, "two three")
    message(http, messages=[*USER, {"role": "assistant", "content": "one"}])
    prompt = loaded()[1].decode(asked[0]["prompt"])
    assert prompt.endswith("<assistant>one")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, "[][]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "[True][]"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "[True][high]"),
        ({"thinking": {"type": "disabled"}}, "[False][]"),
    ],
    ids=str,
)
def test_thinking_reaches_a_template_that_reads_it(http, says, fields, wanted):
    asked = says("[{{ enable_thinking }}][{{ reasoning_effort }}]" + CHAT, "one")
    message(http, **fields)
    assert loaded()[1].decode(asked[0]["prompt"]).startswith(wanted)
    says(CHAT, "one")
    message(http, **fields)


def test_a_format_is_a_structure(http):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]}
    form = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        [block] = message(http, **fields, seed=3)["content"]
        assert json.loads(block["text"])["n"] in (1, 22)


def test_fields_that_change_nothing_are_ignored(http, says):
    asked = says(HERMES, "one")
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    history = [
        *USER,
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": "And?", "new": 1} | cached]},
    ]
    plain = [*USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "And?"}]
    message(http, messages=plain)
    response = post(
        http,
        messages=history,
        system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1;"} | cached],
        tools=[],
        metadata={"user_id": "u" * 400},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        service_tier="standard_only",
        container=None,
        mcp_servers=[],
        betas=["x-2026-01-01"],
        inference_geo="eu",
        speed="standard",
        top_k=5,
        top_p=0.9,
    )
    assert response.status_code == 200, response.text
    assert "x-longdraft-warning" not in response.headers
    assert asked[0]["prompt"] == asked[1]["prompt"]


def test_what_only_anthropics_servers_run_is_reported(http, says):
    asked = says(HERMES, "one")
    remote = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "x"}
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}
    response = post(
        http,
        tools=[*remote, {"type": "custom"} | WEATHER],
        messages=[
            *USER,
            {"role": "assistant", "content": [searched]},
            {"role": "user", "content": [found]},
        ],
        mcp_servers=[{"type": "url", "url": "https://example.org", "name": "x"}],
    )
    names = "ignored: mcp_servers, web_search_20250305, server_tool_use, tool_reference"
    assert response.headers["x-longdraft-warning"] == names
    prompt = loaded()[1].decode(asked[0]["prompt"])
    assert "The weather" in prompt and "web_search" not in prompt
    chosen = {"type": "tool", "name": "web_search"}
    refused = post(http, tools=remote, tool_choice=chosen)
    assert refused.status_code == 400 and "tool_choice" in refused.json()["error"]["message"]


def test_a_limit_is_at_most_what_there_is_room_for(http, says):
    asked = says(CHAT, "one")
    for limit in (1, 32_000, 10**9, None):
        message(http, max_tokens=limit)
    assert [given["max_new_tokens"] for given in asked] == [1, 256, 256, 256]


# Counting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [[], [WEATHER]])
def test_counted_tokens_are_those_of_the_usage(http, says, tools):
    says(HERMES)
    fields = {
        "tools": tools,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": TEXT}],
    }
    counted = post(http, "/v1/messages/count_tokens", **fields, max_tokens=None).json()
    for _ in range(2):
        usage = message(http, **fields, max_tokens=2)["usage"]
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert counted == {"input_tokens": total + usage["cache_creation_input_tokens"]}


def test_cached_tokens_are_counted_apart(http):
    history = [{"role": "user", "content": TEXT * 8}]
    first = message(http, messages=history, **SAMPLED)["usage"]
    second = followed(events_of(http, messages=history, **SAMPLED))["usage"]
    assert second["cache_read_input_tokens"] >= 64 > second["input_tokens"] > 0
    totals = [u["input_tokens"] + u["cache_read_input_tokens"] for u in (first, second)]
    assert totals[0] == totals[1]


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "gpt"}, 404, "not_found_error", "gpt"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": [{"role": "x", "content": ""}]}, 400, "invalid_request_error", "role"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_request_error", "content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "this server reads no images",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            400,
            "invalid_request_error",
            "this server reads no documents",
        ),
        (
            {"messages": [{"role": "user", "content": TEXT * 100}]},
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
        ({"tools": [{"name": "a b"}]}, 400, "invalid_request_error", "tools.0.name"),
        ({"tools": [WEATHER, WEATHER]}, 400, "invalid_request_error", "two functions"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"stop_sequences": ["a"] * 99}, 400, "invalid_request_error", "stop_sequences"),
        ({"n": 2}, 400, "invalid_request_error", "n"),
    ],
    ids=lambda x: str(x)[:40],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_are_anthropics(http, path, fields, status, kind, words):
    response = post(http, path, **fields)
    check_error(response, status, kind)
    assert words in response.json()["error"]["message"]


def check_error(response: httpx.Response, status: int, kind: str) -> None:
    body = response.json()
    assert response.status_code == status, body
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]


def test_errors_before_a_body_is_read_have_the_shape_too(http):
    json_ = {"Content-Type": "application/json"}
    check_error(http.get("/v1/messages"), 405, "invalid_request_error")
    check_error(http.post("/v1/messages/x", json={}), 404, "not_found_error")
    check_error(http.post("/v1/messages", content="{"), 415, "invalid_request_error")
    check_error(http.post("/v1/messages", content="{", headers=json_), 400, "invalid_request_error")
    big = " " * (5 << 20)
    check_error(http.post("/v1/messages", content=big, headers=json_), 413, "request_too_large")
    assert "type" not in http.get("/v1/nothing").json()


@pytest.fixture(scope="module")
def keyed() -> Iterator[httpx.Client]:
    """A client of a server with keys."""
    with serving(keys=(b"one", b"two")) as server, client(server) as http:
        yield http


def test_a_missing_key_is_refused(keyed):
    check_error(post(keyed), 401, "authentication_error")
    assert keyed.head("/").status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("x-api-key", "one", 200),
        ("x-api-key", "two", 200),
        ("x-api-key", "on", 401),
        ("x-api-key", "Bearer one", 401),
        ("Authorization", "Bearer two", 200),
        ("Authorization", "two", 401),
    ],
)
def test_a_key_is_read_from_either_header(keyed, name, value, status):
    found = keyed.post("/v1/messages/count_tokens", json=BODY, headers={name: value})
    assert found.status_code == status
    assert keyed.get("/v1/models", headers={name: value}).status_code == status


# Values of no use anywhere, or in few places.
ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"type": "x"},
    {"type": ["a"]},
    [{"type": {"a": 1}}],
    [{"type": "text", "text": 5}],
    [{"type": "tool_use", "id": "a", "name": "b", "input": [1]}],
    [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value inside a value."""
    entries = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        entries = enumerate(value)
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.full
def test_odd_values_are_answered_or_refused(http, says):
    """One odd value at a time, in every place of a request: none is the server's own error."""
    says(HERMES, "one")
    thought = {"type": "thinking", "thinking": "t", "signature": "s"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "a"}],
    }
    whole = BODY | {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            *USER,
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled"},
        "output_config": {"effort": "low"},
    }
    statuses = set()
    for i, path in enumerate(places(whole)):
        for odd in ODD[i % 4 :: 4]:
            body = deepcopy(whole)
            inner = body
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            content = json.dumps(body)
            headers = {"Content-Type": "application/json"}
            response = http.post("/v1/messages", content=content, headers=headers)
            statuses.add(response.status_code)
            assert response.status_code < 500, content
            assert response.json()["type"] == ("message" if response.is_success else "error")
    assert {200, 400} <= statuses <= {200, 400, 404}


# Claude Code --------------------------------------------------------------------------------------

PARAMETERS = {
    "Bash": ("command", "timeout", "description", "run_in_background"),
    "Edit": ("file_path", "old_string", "new_string", "replace_all"),
    "Read": ("file_path", "offset", "limit", "pages"),
    "Write": ("file_path", "content"),
    "Glob": ("pattern", "path"),
    "Grep": ("pattern", "path", "glob", "type", "output_mode", "-A", "-B", "-n"),
    "Task": ("description", "prompt", "subagent_type", "model"),
    "TodoWrite": ("todos",),
    "WebFetch": ("url", "prompt"),
    "WebSearch": ("query", "allowed_domains"),
}
MCP = [f"mcp__server-{i}__look_up_a_thing" for i in range(10)]


def test_the_first_model_stands_in_for_anthropics(keyed, caplog):
    """The log says so once, without the name that the client chose."""
    with caplog.at_level(logging.INFO, "longdraft.server"):
        for name in ("claude-one", "claude-two"):
            path = "/v1/messages/count_tokens"
            response = keyed.post(path, json=BODY | {"model": name}, headers={"x-api-key": "one"})
            assert response.json()["input_tokens"] > 0
    lines = [record.getMessage() for record in caplog.records if "claude" in record.getMessage()]
    assert len(lines) == 1 and "claude-one" not in lines[0]


def agent_tools() -> list[dict[str, Any]]:
    tools = []
    for name in (*PARAMETERS, *MCP):
        names = PARAMETERS.get(name, ("query",))
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {p: {"type": "string", "description": p} for p in names},
            "required": [names[0]],
            "additionalProperties": False,
        }
        tools.append({"name": name, "description": f"Does {name}.", "input_schema": schema})
    return tools


def agent_request(billing: str = "cch=00001;") -> dict[str, Any]:
    """A request in the shape of Claude Code's first, in our own words."""
    cached = {"cache_control": {"type": "ephemeral"}}
    reminder = "<system-reminder>\nToday is a day.\n</system-reminder>\n"
    return {
        "model": "claude-sonnet-4-5-20250929",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": reminder},
                    {"type": "text", "text": "Rename the function."} | cached,
                ],
            }
        ],
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; {billing}"},
            {"type": "text", "text": "You are an agent for code."} | cached,
            {"type": "text", "text": "Use the tools.\n\n# Environment\nA folder."} | cached,
        ],
        "tools": agent_tools(),
        "metadata": {"user_id": "user_0123_account__session_4567"},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }


@pytest.mark.full
def test_the_first_request_of_an_agent_is_answered(http, says):
    call = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "a.py"}}\n</tool_call>'
    asked = says(HERMES.replace(" | tojson", ".function.name"), call)
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-api-key": "none",
        "x-stainless-retry-count": "0",
    }
    assert http.head("/").status_code == 200
    for billing in ("cch=00001;", "cch=ffff2;"):
        response = http.post("/v1/messages?beta=true", json=agent_request(billing), headers=headers)
        assert response.status_code == 200, response.text
        lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
        found = followed([json.loads(line[6:]) for line in lines])
        assert found["stop_reason"] == "tool_use" and found["model"] == "tiny"
        assert found["content"][0]["input"] == {"file_path": "a.py"}
    assert asked[0]["prompt"] == asked[1]["prompt"]  # so that it is reused
    prompt = loaded()[1].decode(asked[0]["prompt"])
    assert "You are an agent for code.\n\nUse the tools." in prompt
    assert "billing" not in prompt and MCP[-1] in prompt
    counted = http.post("/v1/messages/count_tokens?beta=true", json=agent_request())
    assert counted.json() == {"input_tokens": len(asked[0]["prompt"])}
