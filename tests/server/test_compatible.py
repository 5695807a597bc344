"""What released clients rely on: harmless fields are accepted, others refused by name, and the
document is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.served import TEXT, chunks, client, serving

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": 12,
    "seed": 3,
}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 12, "seed": 3}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving() as server, client(server) as found:
        yield found


def said(http: httpx.Client, body: dict) -> str:
    found = http.post(
        "/v1/chat/completions" if "messages" in body else "/v1/completions", json=body
    )
    assert found.status_code == 200, found.text
    choice = found.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("field", "harmless", "other"),
    [
        ("metadata", {"run": "1"}, {"run": 1}),
        ("modalities", ["text"], ["text", "audio"]),
        ("parallel_tool_calls", True, 1),
        ("best_of", 1, 2),
        ("prompt_cache_key", "a conversation", 5),
        ("safety_identifier", "a client", 5),
        ("add_generation_prompt", True, "yes"),
        ("continue_final_message", False, 1),
        ("chat_template_kwargs", {}, []),
        ("min_tokens", 0, 13),
    ],
)
def test_a_value_that_asks_for_nothing_changes_nothing(http, field, harmless, other):
    plain = PROMPT if field == "best_of" else CHAT
    assert (
        said(http, plain | {field: harmless})
        == said(http, plain)
        == said(http, plain | {field: None})
    )
    path = "/v1/completions" if field == "best_of" else "/v1/chat/completions"
    refused = http.post(path, json=plain | {field: other})
    assert refused.status_code == 400 and refused.json()["error"]["param"].split(".")[0] == field


def test_a_list_of_one_prompt_is_that_prompt(http):
    """As lm-evaluation-harness sends it in a batch of one, as token ids."""
    ids = http.post("/tokenize", json={"prompt": TEXT}).json()["tokens"]
    found = {said(http, PROMPT | {"prompt": prompt}) for prompt in (TEXT, [TEXT], ids, [ids])}
    assert len(found) == 1
    for prompt in ([ids, 5], [[]], [[[5]]], [[TEXT]]):
        refused = http.post("/v1/completions", json=PROMPT | {"prompt": prompt})
        assert refused.status_code == 400 and refused.json()["error"]["param"].startswith("prompt")


@pytest.mark.parametrize("body", [CHAT, PROMPT], ids=["chat", "completion"])
@pytest.mark.parametrize("n", [1, 2])
def test_every_part_of_a_stream_can_have_the_usage_so_far(http, body, n):
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = body | {"ignore_eos": True, "n": n, "stream": True}
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    with http.stream("POST", path, json=body | {"stream_options": wanted}) as response:
        parts = chunks(response)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts) and counts[0] < 12 * n == counts[-1]
    with http.stream(
        "POST", path, json=body | {"stream_options": {"continuous_usage_stats": True}}
    ) as response:
        assert all("usage" not in part for part in chunks(response))


@pytest.mark.full
def test_the_document_has_every_status_that_a_path_answers(http):
    document = http.get("/openapi.json").json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    shape = document["components"]["schemas"]["Error"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            found = operation["responses"]
            wanted = {"200", "401", "429"} | (
                {"400", "404", "413", "415"} if method == "post" else set()
            )
            assert wanted <= set(found) and "422" not in found, path
            if path.startswith(("/v1/chat", "/v1/completions", "/v1/responses")):
                assert {"500", "503"} <= set(found) and "text/event-stream" in found["200"][
                    "content"
                ]
            for status in wanted - {"200"}:
                assert found[status]["content"]["application/json"]["schema"]["$ref"].endswith(
                    "/Error"
                )
    error = http.post("/v1/completions", json={}).json()
    assert set(error) == set(shape["required"]) == {"error"}
    assert set(error["error"]) == set(shape["properties"]["error"]["required"])


@pytest.mark.full
def test_a_method_that_is_not_allowed_is_told_which_is(http):
    refused = http.get("/v1/completions")
    assert refused.status_code == 405 and refused.headers["Allow"] == "POST"
