"""Ollama's API gives what OpenAI's gives for the same settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.served import NEW, TEXT, asked, quiet, said, tokens_of

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
        ({"options": {"num_ctx": 100_000}}, "512"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"format": "xml"}, "format"),
        ({"think": True}, "think"),
        ({"tools": [{}]}, "tools"),
        ({"messages": []}, "messages"),
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
    assert http.get("/api/version").json()["version"]


def test_a_client_that_leaves_ends_its_request(server, http):
    body = {"model": "tiny", "messages": USER, "options": {"num_predict": 256}}
    with http.stream("POST", "/api/chat", json=body) as response:
        next(response.iter_lines())
    assert quiet(server)
