"""Ollama's API gives what OpenAI's gives for the same settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.formats_of_calls import CITY, HERMES, QWEN3, B, R
from support.served import CHAT, NEW, TEXT, asked, client, loaded, quiet, said, serving, tokens_of

from longdraft.server.ollama.answer_objects import CallCollector
from longdraft.server.ollama.history import as_openai
from longdraft.server.ollama.ollama_schema import OllamaRequest

OPTIONS = {"num_predict": NEW, "seed": 3, "temperature": 0.7, "top_k": 30, "top_p": 0.9}
OURS = {
    "max_tokens": NEW,
    "seed": 3,
    "temperature": 0.7,
    "top_k": 30,
    "top_p": 0.9,
    "ignore_eos": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TWO = f"I look.\n<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{R}\n</tool_call>"
CUT = f"I look.\n<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{R[:-6]}"
REST = '{"name": "weather", "arguments": {"city": "R'
IGNORED = "x-longdraft-ignored"
USER = [{"role": "user", "content": TEXT}]


def chat(http, **more: Any) -> Any:
    return http.post(
        "/api/chat",
        json={"model": "tiny", "messages": USER, "options": OPTIONS, "stream": False} | more,
    )


def wanted(http, **more: Any) -> str:
    body = {"model": "tiny", "messages": USER} | OURS | more
    return http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("fault", [False, True])
def test_a_chat_is_openais(http, fault, monkeypatch):
    if fault:
        monkeypatch.setattr(
            OllamaRequest, "sampled", property(lambda self: {"model": self.model, "seed": 3})
        )
    found = chat(http).json()
    assert (found["message"] == {"role": "assistant", "content": wanted(http)}) != fault
    assert found["done"] and found["done_reason"] == "length" and found["eval_count"] == NEW
    assert found["total_duration"] >= found["eval_duration"] > 0 and found["prompt_eval_count"] > 0


def test_a_stream_is_lines_of_json(http):
    with http.stream(
        "POST", "/api/chat", json={"model": "tiny", "messages": USER, "options": OPTIONS}
    ) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        *parts, last = [json.loads(line) for line in response.iter_lines()]
    assert "".join(p["message"]["content"] for p in parts) == wanted(http) and not any(
        p["done"] for p in parts
    )
    assert last["done"] and last["message"]["content"] == ""


@pytest.mark.full
def test_generation_is_a_chat_or_a_text_that_goes_on(http):
    body = {"model": "tiny", "prompt": TEXT, "options": OPTIONS, "stream": False}
    assert http.post("/api/generate", json=body).json()["response"] == wanted(http)
    system = [{"role": "system", "content": "Be brief."}, *USER]
    assert http.post("/api/generate", json=body | {"system": "Be brief."}).json()[
        "response"
    ] == wanted(http, messages=system)
    raw = http.post("/api/generate", json=body | {"raw": True}).json()["response"]
    ours = http.post("/v1/completions", json=asked(**OURS)).json()["choices"][0]["text"]
    assert raw == ours != said(tokens_of(TEXT))


def test_a_format_is_a_structure(http):
    """The schema of an answer's JSON; the answer is that of a chat with this response_format."""
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    found = json.loads(chat(http, format=schema).json()["message"]["content"])
    assert set(found) == {"n"} and found["n"] in (1, 22)


@pytest.mark.full
@pytest.mark.parametrize("limit", [{}, {"num_predict": -1}, {"num_predict": -2}], ids=str)
def test_an_answer_without_a_limit_has_the_servers(http, limit):
    body = {
        "model": "tiny",
        "prompt": "a",
        "raw": True,
        "stream": False,
        "options": {"seed": 3, **limit},
    }
    found = http.post("/api/generate", json=body).json()
    assert found["eval_count"] == 256 or found["done_reason"] == "stop"


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"format": "xml"}, "format"),
        ({"think": "much"}, "think"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(http, more, word):
    """In Ollama's shape, where an error is a text."""
    found = chat(http, **more)
    assert found.status_code == 400 and word in found.json()["error"]


def test_another_model_is_not_found(http):
    found = chat(http, model="other")
    assert found.status_code == 404 and "tiny" in found.json()["error"]


def test_models_are_listed_and_described(http):
    [listed] = http.get("/api/tags").json()["models"]
    assert (
        listed["name"] == listed["model"] == "tiny"
        and http.get("/api/ps").json()["models"][0]["name"] == "tiny"
    )
    shown = http.post("/api/show", json={"model": "tiny"}).json()
    assert (
        shown["model_info"][next(k for k in shown["model_info"] if k.endswith(".context_length"))]
        == 512
        and "completion" in shown["capabilities"]
    )
    assert http.head("/api/tags").status_code == http.head("/").status_code == 200
    version = http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)  # what Codex asks for


def test_a_client_that_leaves_ends_its_request(server, http):
    body = {"model": "tiny", "messages": USER, "options": {"num_predict": 256}}
    with http.stream("POST", "/api/chat", json=body) as response:
        next(response.iter_lines())
    assert quiet(server)


@pytest.mark.parametrize("fault", [False, True])
def test_latest_is_the_model(http, fault, monkeypatch):
    if fault:
        monkeypatch.setattr("longdraft.server.models.LATEST", ":other")
    for path, more in (
        ("/api/show", {}),
        ("/api/generate", {}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 1}),
    ):
        found = http.post(path, json={"model": "tiny:latest"} | more)
        assert found.status_code == (404 if fault else 200)
    assert http.post("/api/show", json={"model": "tiny:8b"}).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_a_load_request_decodes_nothing(server, http, stream, monkeypatch):
    monkeypatch.setattr(server.engine, "submit", None)
    body = {"model": "tiny", "keep_alive": "5m", "stream": stream}
    chatted = http.post("/api/chat", json=body | {"messages": []}).json()
    assert chatted["message"] == {"role": "assistant", "content": ""}
    texts = http.post("/api/generate", json=body).json()
    assert texts["response"] == ""
    for found in (chatted, texts):
        assert found["done"] is True and found["done_reason"] == "load" and found["created_at"]


def test_what_has_no_effect_is_reported(http):
    """A context that is too large is lowered; a strict server still refuses it."""
    options = OPTIONS | {"num_ctx": 100_000, "num_gpu": 1, "num_thread": 2}
    found = chat(http, options=options, truncate=True, shift=True, logprobs=False, think=True)
    assert found.json()["message"]["content"] == wanted(http)
    assert set(found.headers[IGNORED].split(", ")) == {
        "num_gpu",
        "num_thread",
        "truncate",
        "shift",
        "think",
    }
    assert IGNORED not in chat(http, think=False).headers


def test_capabilities_are_the_templates(http, says):
    def capabilities() -> list[str]:
        return http.post("/api/show", json={"model": "tiny"}).json()["capabilities"]

    says("")
    assert capabilities() == ["completion"]
    says(HERMES)
    assert capabilities() == ["completion", "tools"]
    says(QWEN3)
    assert capabilities() == ["completion", "tools", "thinking"]


def objects(http, **more: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "messages": USER, "tools": [WEATHER]} | more
    with http.stream("POST", "/api/chat", json=body) as response:
        return [json.loads(line) for line in response.iter_lines()]


@pytest.mark.parametrize("at_once", [1, 1000])
def test_calls_have_objects_as_arguments(http, says, at_once):
    """Whole and in a stream, where each call comes complete."""
    asked = says(HERMES, TWO, at_once=at_once)
    streamed = objects(http)
    assert "weather" in loaded()[1].decode(asked[0]["prompt"])
    calls = [call for part in streamed for call in part["message"].get("tool_calls", [])]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "weather", "arguments": {"city": "Bern"}},
        {"index": 1, "name": "weather", "arguments": {"city": "Rome"}},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(part["message"]["content"] for part in streamed) == "I look."
    assert streamed[-1]["done_reason"] == "stop" and "tool_calls" not in streamed[-1]["message"]
    whole = chat(http, tools=[WEATHER]).json()
    assert whole["message"]["content"] == "I look." and whole["done"] is True
    assert [c["function"] for c in whole["message"]["tool_calls"]] == [c["function"] for c in calls]


@pytest.mark.parametrize("fault", [False, True])
def test_a_call_that_was_cut_is_text(http, says, fault, monkeypatch):
    says(HERMES, CUT, ended="length")
    if fault:
        take = CallCollector.take
        monkeypatch.setattr(
            CallCollector,
            "take",
            lambda self, parts: take(self, parts) + [{}] * any(p.kind == "call" for p in parts),
        )
    whole = chat(http, tools=[WEATHER]).json()
    assert whole["done_reason"] == "length"
    assert (len(whole["message"]["tool_calls"]) == 1) != fault
    if not fault:
        content = whole["message"]["content"]
        streamed = objects(http)
        assert "".join(part["message"]["content"] for part in streamed) == content
        before, brace, rest = content.partition("{")
        assert before == "I look." and brace + rest == REST


def test_reasoning_is_apart(http, says):
    says(QWEN3, "<think>\nHm.\n</think>\nYes.")
    streamed = objects(http)
    for message in (
        {
            key: "".join(part["message"].get(key, "") for part in streamed)
            for key in ("content", "thinking")
        },
        chat(http).json()["message"],
    ):
        assert message["content"] == "Yes." and message["thinking"].strip() == "Hm."
    whole = http.post(
        "/api/generate", json={"model": "tiny", "prompt": "a", "stream": False}
    ).json()
    assert whole["response"] == "Yes." and whole["thinking"].strip() == "Hm."


@pytest.mark.parametrize(
    ("template", "think", "shown"),
    [
        ("[{{ enable_thinking }}]", True, "[True]"),
        ("[{{ enable_thinking }}]", False, "[False]"),
        ("[{{ enable_thinking }}]", "low", "[True]"),
        ("[{{ enable_thinking }}{{ reasoning_effort }}]", "low", "[low]"),
    ],
)
def test_think_is_the_templates_switch(http, says, template, think, shown):
    asked = says(CHAT + template, "Yes.")
    found = chat(http, think=think)
    assert found.status_code == 200 and IGNORED not in found.headers
    assert shown in loaded()[1].decode(asked[0]["prompt"])


def test_calls_and_results_are_read_as_openais():
    """Results answer the call of the function that they name, or else the first open one."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments, "index": 0}}

    made = as_openai(
        [
            {
                "role": "assistant",
                "thinking": "Hm.",
                "tool_calls": [call("a", x=1), call("b"), call("c")],
            },
            {"role": "tool", "tool_name": "b", "content": "1"},
            {"role": "tool", "content": "2"},
            {"role": "tool", "tool_name": "other", "content": "3"},
            {"role": "tool", "content": "4"},
            {"role": "tool", "tool_call_id": "own", "content": "5"},
            "no message",
        ]
    )
    assert made[0]["reasoning_content"] == "Hm."
    ids = [call["id"] for call in made[0]["tool_calls"]]
    assert [call["function"]["arguments"] for call in made[0]["tool_calls"]] == [
        '{"x": 1}',
        "{}",
        "{}",
    ]
    assert [m["tool_call_id"] for m in made[1:5]] == [ids[1], ids[0], ids[2], "call00003"]
    assert made[5]["tool_call_id"] == "own" and made[6] == "no message"


@pytest.mark.full
def test_a_conversation_with_calls_is_the_templates(http, says):
    earlier = "{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}"
    asked = says(HERMES + earlier + "{% endfor %}", "Fine.")
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    more = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "Rain"},
    ]
    assert chat(http, messages=USER + more).json()["message"]["content"] == "Fine."
    text = loaded()[1].decode(asked[0]["prompt"])
    assert "Bern" in text and "Rain" in text


@pytest.mark.full
def test_a_strict_server_refuses_what_has_no_effect():
    with serving(strict=True) as server, client(server) as http:
        assert chat(http, think=False).status_code == 200
        for more, word in (
            ({"options": {"num_ctx": 100_000}}, "512"),
            ({"options": {"num_gpu": 1}}, "options.num_gpu"),
            ({"think": True}, "think"),
            ({"truncate": True}, "truncate"),
        ):
            found = chat(http, **more)
            assert found.status_code == 400 and word in found.json()["error"]
