"""Structured output over HTTP: what the library writes under the same constraint, however it is
asked for.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
from support.served import chunks, loaded, tokens_of

from longdraft import Sampler, generate
from longdraft.constraints import Constraints
from longdraft.models.chat import chat_tokens
from longdraft.models.text import text_of

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["file", "folder"]},
    },
    "required": ["path", "kind"],
    "additionalProperties": False,
}
TEXT = "import os"
JSON = {"type": "json_schema", "json_schema": {"name": "entry", "schema": SCHEMA, "strict": True}}


@cache
def constraints() -> Constraints:
    return Constraints.of(*loaded())


def expected(
    constraint, prompt: list[int] | None = None, seed: int = 3, temperature: float = 1.0
) -> str:
    lm, tokenizer = loaded()
    prompt = prompt or tokens_of(TEXT)
    sampler = Sampler(temperature, constraint=constraint)
    return text_of(
        tokenizer, generate(lm, [prompt], max_new_tokens=64, sampler=sampler, seed=seed)[0]
    )


def body(**more) -> dict:
    return {"model": "tiny", "prompt": TEXT, "max_tokens": 64, "seed": 3} | more


@pytest.mark.parametrize(
    ("fields", "make"),
    [
        ({"response_format": JSON}, lambda c: c.json_schema(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, lambda c: c.json_schema(SCHEMA)),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA)}, "temperature": 0},
            lambda c: c.json_schema(SCHEMA),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            lambda c: c.json_schema(SCHEMA, compact=True),
        ),
        ({"response_format": {"type": "json_object"}}, lambda c: c.json_object()),
        (
            {"structured_outputs": {"regex": "[a-z]{3}-[0-9]+;"}},
            lambda c: c.regex("[a-z]{3}-[0-9]+;"),
        ),
        (
            {"structured_outputs": {"choice": ["file", "folder"]}},
            lambda c: c.choice(["file", "folder"]),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "(" start ")" | "x"'}},
            lambda c: c.grammar('start: "(" start ")" | "x"'),
        ),
    ],
    ids=lambda x: str(x)[:60] if isinstance(x, dict) else "",
)
def test_an_answer_is_what_generate_writes_under_the_constraint(http, fields, make):
    found = http.post("/v1/completions", json=body(**fields)).json()
    constraint = make(constraints())
    assert found["choices"][0]["text"] == expected(
        constraint, temperature=fields.get("temperature", 1.0)
    )


@pytest.mark.full
def test_a_chat_a_stream_and_a_response_say_the_same(http):
    messages = [{"role": "user", "content": "import os"}]
    prompt = chat_tokens(loaded()[1], messages)
    text = expected(constraints().json_schema(SCHEMA), prompt)
    assert set(json.loads(text)) == {"path", "kind"}
    chat = {
        "model": "tiny",
        "messages": messages,
        "max_tokens": 64,
        "seed": 3,
        "response_format": JSON,
    }
    whole = http.post("/v1/chat/completions", json=chat).json()["choices"][0]
    assert whole["message"]["content"] == text and whole["finish_reason"] == "stop"
    with http.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as stream:
        parts = chunks(stream)
    assert "".join(p["choices"][0]["delta"].get("content") or "" for p in parts) == text
    form = {"type": "json_schema", "name": "entry", "schema": SCHEMA, "strict": True}
    asked = {
        "model": "tiny",
        "input": "import os",
        "max_output_tokens": 64,
        "seed": 3,
        "text": {"format": form},
    }
    found = http.post("/v1/responses", json=asked).json()
    assert found["output"][0]["content"][0]["text"] == text and found["text"]["format"] == form


def test_choices_have_seeds_of_their_own_and_each_is_valid(http):
    found = http.post("/v1/completions", json=body(n=4, response_format=JSON)).json()
    values = [json.loads(choice["text"]) for choice in found["choices"]]
    assert (
        all(value["kind"] in ("file", "folder") for value in values)
        and len({c["text"] for c in found["choices"]}) > 1
    )


def test_forced_tokens_are_drafted(http):
    usage = http.post("/v1/completions", json=body(response_format=JSON)).json()["usage"][
        "completion_tokens_details"
    ]
    assert usage["accepted_draft_tokens"] > 5


UNIQUE = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "uniqueItems": True}


def test_what_is_not_enforced_is_in_a_header_and_the_rest_is(http):
    """uniqueItems, which pydantic writes for sets; one of several parts is left out without a
    word.
    """

    def answered(**properties):
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        form = {
            "type": "json_schema",
            "json_schema": {"name": "entry", "schema": schema, "strict": True},
        }
        found = http.post("/v1/completions", json=body(response_format=form))
        return found, json.loads(found.json()["choices"][0]["text"])

    found, value = answered(tags=UNIQUE)
    assert found.headers["x-longdraft-warning"] == "uniqueItems of the schema is not enforced"
    assert set(value) == {"tags"} and set(value["tags"]) <= {"a", "b"} and len(value["tags"]) <= 2
    found, value = answered(tags={"anyOf": [UNIQUE, {"type": "boolean"}]})
    assert "x-longdraft-warning" not in found.headers and isinstance(value["tags"], bool)


def commas() -> dict[str, int]:
    """Biases by which the model writes a comma wherever it may."""
    tokenizer = loaded()[1]
    return {str(i): 100 for i in range(len(tokenizer)) if "," in tokenizer.decode([i])}


DEAD = {
    "type": "object",
    "properties": {"x": {"enum": [1]}},
    "patternProperties": {"^x$": {"enum": [1]}},
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_that_cannot_be_completed_is_an_error_with_its_reason(http, path, stream):
    """Nothing can follow a comma in these objects: the client must not take {"x": 1, for an
    answer.
    """
    schema = DEAD | {"required": ["x"], "additionalProperties": False}
    asked = body(
        structured_outputs={"json": schema}, temperature=0, logit_bias=commas(), stream=stream
    )
    if path != "/v1/completions":
        del asked["prompt"]
        asked["messages"] = [{"role": "user", "content": "x"}]
    if path == "/v1/responses":
        asked = {
            "model": "tiny",
            "input": "x",
            "temperature": 0,
            "stream": stream,
            "logit_bias": commas(),
        }
        asked["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    found = http.post(path, json=asked)
    assert "could not be followed to its end: nothing can follow the text" in found.text
    assert '"stop"' not in found.text and '"completed"' not in found.text
    assert found.status_code == (200 if stream else 400)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                }
            },
            "Unimplemented",
        ),
        ({"response_format": JSON, "structured_outputs": {"regex": "a"}}, "give one of them"),
        ({"response_format": JSON, "ignore_eos": True}, "ignore_eos: a structured answer ends"),
        ({"response_format": JSON, "stop": ","}, "stop: a structured answer ends"),
        (
            {"structured_outputs": {"choice": ["a"]}, "stop": ["\n", "x"]},
            "stop: a structured answer ends",
        ),
        (
            {"response_format": JSON, "stop_token_ids": [1, 7]},
            "stop_token_ids: a structured answer ends",
        ),
        ({"structured_outputs": {}}, "give one of json, json_object, regex, choice and grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "give one of"),
        ({"structured_outputs": {"regex": "(a"}}, "unclosed group"),
        ({"structured_outputs": {"grammar": "start: ("}}, "the grammar cannot be used"),
        ({"structured_outputs": {"json": "{"}}, "is not JSON"),
        ({"structured_outputs": {"regex": "a" * 20_000}}, "at most 10000"),
    ],
    ids=lambda x: x[:30] if isinstance(x, str) else "",
)
def test_what_cannot_be_is_refused_with_its_reason(http, fields, message):
    found = http.post("/v1/completions", json=body(**fields))
    assert found.status_code == 400 and message in found.json()["error"]["message"], found.text
