"""The Responses API with tools and reasoning: items in the order in which they were written, and
their events.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import httpx
import pytest
from support.formats_of_calls import CITY, HERMES, QWEN3, B, R
from support.served import CHAT, loaded

from longdraft.models.chat import chat_tokens

WEATHER = {"type": "function", "name": "weather", "description": "The weather", "parameters": CITY}
BODY: dict[str, Any] = {
    "model": "tiny",
    "input": "How is it in Bern?",
    "tools": [WEATHER],
    "max_output_tokens": 200,
}
SAID = (
    "<think>\nWhy?\n</think>\n\nI "
    f"look.\n<tool_call>\n{B}\n</tool_call>\n<tool_call>\n{R}\n</tool_call>"
)
KINDS = ["reasoning", "message", "function_call", "function_call"]


def events_of(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", "/v1/responses", json=body | {"stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [f"event: {e['type']}" for e in events] == lines[::2]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    return events


def plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without ids, which are drawn."""
    return [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in items
    ]


def followed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client that follows the events has them. Every item and part begins, goes on
    and ends in turn.
    """
    items = list[dict[str, Any]]()
    for event in deepcopy(events[2:-1]):
        kind = event["type"].removeprefix("response.")
        item = items[event["output_index"]] if kind != "output_item.added" else None
        if item is None:
            assert event["output_index"] == len(items) and (
                not items or items[-1]["status"] == "completed"
            )
            items.append(event["item"])
            continue
        assert item is items[-1] and (kind == "output_item.done" or event["item_id"] == item["id"])
        if kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind.endswith(".delta"):
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert item["arguments"] == event["arguments"] and item["name"] == event["name"]
        elif kind == "content_part.done":
            assert item["content"][0] == event["part"]
        elif kind == "output_item.done":
            assert event["item"] == item | {"status": event["item"]["status"]}
            item["status"] = event["item"]["status"]
        else:
            assert item["content"][0]["text"] == event["text"]
    return items


def test_items_come_in_order(http, says):
    asked = says(QWEN3, SAID)
    whole = http.post("/v1/responses", json=BODY).json()
    assert [item["type"] for item in whole["output"]] == KINDS and whole["status"] == "completed"
    thought, message, bern, rome = whole["output"]
    assert (
        thought["content"] == [{"type": "reasoning_text", "text": "Why?"}]
        and thought["summary"] == []
    )
    assert message["content"][0]["text"] == "I look." and bern["name"] == "weather"
    assert [json.loads(call["arguments"]) for call in (bern, rome)] == [
        {"city": "Bern"},
        {"city": "Rome"},
    ]
    assert (
        bern["call_id"] != rome["call_id"]
        and bern["call_id"].startswith("call_")
        and bern["id"] != bern["call_id"]
    )
    assert (
        whole["tools"][0]["name"] == "weather"
        and whole["tool_choice"] == "auto"
        and whole["parallel_tool_calls"]
    )
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 3
    assert "The weather" in loaded()[1].decode(asked[0]["prompt"])
    events = events_of(http, BODY)
    assert (
        events[-1]["type"] == "response.completed"
        and sum("arguments.delta" in e["type"] for e in events) > 4
    )
    assert (
        plain(followed(events)) == plain(whole["output"]) == plain(events[-1]["response"]["output"])
    )
    assert followed(events)[2]["call_id"] == events[-1]["response"]["output"][2]["call_id"]


def test_a_cut_answer_is_incomplete_in_its_last_item(http, says):
    says(HERMES, SAID[SAID.index("I look") : SAID.index("Rome")], "length")
    whole = http.post("/v1/responses", json=BODY).json()
    assert whole["status"] == "incomplete"
    assert [item["status"] for item in whole["output"]] == ["completed", "completed", "incomplete"]
    assert plain(followed(events_of(http, BODY))) == plain(whole["output"])


@pytest.mark.full
def test_an_empty_answer_is_an_empty_message(http, says):
    says(HERMES, "")
    [message] = http.post("/v1/responses", json=BODY).json()["output"]
    assert (
        message["content"][0]["text"]
        == ""
        == followed(events_of(http, BODY))[0]["content"][0]["text"]
    )


def test_a_conversation_goes_on_with_what_came(http, says):
    asked = says(QWEN3, SAID)
    output = http.post("/v1/responses", json=BODY).json()["output"]
    results = [
        {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "Rain"},
        {
            "type": "function_call_output",
            "call_id": output[3]["call_id"],
            "output": [{"type": "input_text", "text": "Sun"}],
        },
    ]
    conversation = [{"role": "user", "content": "How is it in Bern?"}, *output, *results]
    assert http.post("/v1/responses", json=BODY | {"input": conversation}).status_code == 200
    calls = [
        {
            "id": item["call_id"],
            "type": "function",
            "function": {"name": "weather", "arguments": json.loads(item["arguments"])},
        }
        for item in output[2:]
    ]
    answer = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Why?",
        "tool_calls": calls,
    }
    messages = [
        conversation[0],
        answer,
        *(
            {"role": "tool", "tool_call_id": calls[i]["id"], "content": text}
            for i, text in enumerate(("Rain", "Sun"))
        ),
    ]
    tokenizer = deepcopy(loaded()[1])
    tokenizer.chat_template = QWEN3
    tool = {
        "type": "function",
        "function": {key: WEATHER[key] for key in ("name", "description", "parameters")},
    }
    assert asked[-1]["prompt"] == chat_tokens(tokenizer, messages, [tool])


def test_tools_of_other_types_are_not_offered(http, says):
    """Codex sends several with every request."""
    others = [
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ]
    asked = says(HERMES, SAID)
    body = BODY | {
        "tools": [others[0], WEATHER, others[1]],
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    found = http.post("/v1/responses", json=body).json()
    assert [tool["name"] for tool in found["tools"]] == ["weather"] and found["output"][1][
        "type"
    ] == "function_call"
    assert "apply_patch" not in loaded()[1].decode(asked[0]["prompt"])
    says(CHAT, "Yes.")
    assert (
        http.post("/v1/responses", json=BODY | {"tools": others}).json()["output"][0]["content"][0][
            "text"
        ]
        == "Yes."
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tool_choice": {"type": "function", "name": "rain"}}, "no function 'rain'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "an item must be a message"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_in_one_line(http, says, change, words):
    says(HERMES, SAID)
    refused = http.post("/v1/responses", json=BODY | change)
    assert refused.status_code == 400 and words in refused.json()["error"]["message"]
