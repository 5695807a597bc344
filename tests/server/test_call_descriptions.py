"""A model whose template does not support tools: they are described in a system message, and its
calls are read and can be required.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.formats_of_calls import B, tokenizer_of
from support.served import CHAT, loaded
from test_calls import reply_of
from test_server_calls import BODY, TWO, USER, WEATHER, answers, put_together, streamed

from longdraft.server.calls.described import described, nearest_format, needs_description
from longdraft.server.calls.dialect import Dialect
from longdraft.server.calls.hermes import Hermes
from longdraft.server.calls.llama import Llama
from longdraft.server.calls.mistral_calls import Mistral
from longdraft.server.decode import talk

CALL = {"id": "a", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "Sunny."},
    {"role": "tool", "tool_call_id": "b", "content": "Warm."},
    {"role": "user", "content": "And in Rome?"},
]


def test_the_model_is_told_and_its_calls_are_read(http, says):
    asked = says(CHAT, TWO)
    choice = http.post("/v1/chat/completions", json=BODY).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I look."
    cities = [json.loads(c["function"]["arguments"]) for c in choice["message"]["tool_calls"]]
    assert cities == [{"city": "Bern"}, {"city": "Rome"}]
    prompt = loaded()[1].decode(asked[0]["prompt"])
    assert "The weather" in prompt and "<tool_call>" in prompt
    assert prompt.index("<system>") < prompt.index("The weather") < prompt.index("<user>")
    calls = put_together(streamed(http, BODY))["calls"]
    assert [call[1:] for call in calls] == [["weather", json.dumps(city)] for city in cities]


@pytest.mark.full
def test_a_call_can_be_required():
    for choice in answers(CHAT, {"tool_choice": "required", "n": 2}):
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "weather"


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_without_an_offer_nothing_is_described(http, says, choice):
    asked = says(CHAT, TWO)
    body = BODY | ({"tool_choice": "none"} if choice == "none" else {"tools": []})
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] == TWO
    assert "# Tools" not in loaded()[1].decode(asked[0]["prompt"])


def test_a_line_in_the_log_says_so_once(monkeypatch):
    lines = list[str]()
    monkeypatch.setattr(talk, "note", lines.append)
    tokenizer = tokenizer_of("hermes text")
    monkeypatch.setattr(tokenizer, "chat_template", CHAT + "{# no tool #}")
    for _ in range(2):
        dialect, messages, tools = talk.prompted(tokenizer, TALK, [WEATHER])
        assert tools is None and isinstance(dialect.format, Hermes)
        assert "The weather" in messages[0]["content"]
    assert len(lines) == 1 and "system message" in lines[0] and lines[0].endswith("Hermes")
    dialect, messages, tools = talk.prompted(tokenizer, [USER], None)
    assert dialect.format is None and messages == [USER] and len(lines) == 1


def test_earlier_calls_and_results_are_texts_in_the_turns_of_both():
    system, user, said, results = described(TALK, [WEATHER], Hermes)
    assert system["content"].startswith("Be brief.\n\n# Tools") and user == USER
    assert said == {"role": "assistant", "content": f"I look.\n<tool_call>\n{B}\n</tool_call>"}
    assert results["role"] == "user" and results["content"] == (
        "<tool_response>\nSunny.\n</tool_response>\n<tool_response>\nWarm.\n</tool_response>\n"
        "And in Rome?"
    )
    assert described(TALK, None, Hermes)[0] == TALK[0]
    assert described([USER], [WEATHER], Hermes)[1:] == [USER]


@pytest.mark.parametrize(
    ("name", "kind"), [("hermes", Hermes), ("llama", Llama), ("mistral", Mistral)]
)
def test_the_format_is_that_of_the_vocabulary_and_read_back(name, kind):
    tokenizer = tokenizer_of(name)
    assert nearest_format(tokenizer.get_added_vocab()) is kind
    dialect = Dialect(tokenizer, CHAT, described=True)
    assert isinstance(dialect.format, kind)
    assert json.dumps(WEATHER) in described([USER], [WEATHER], kind)[0]["content"]
    text = described(TALK[:3], None, kind)[2]["content"].removeprefix("I look.\n")
    reply = reply_of(name)
    parts = reply.reader.push(dialect_text(dialect, text)) + reply.reader.end()
    assert [part.text for part in parts if part.kind != "content"] == [
        "weather",
        '{"city": "Bern"}',
    ]


def dialect_text(dialect: Dialect, text: str) -> str:
    """A text in which marks that are special tokens are the characters that stand for them."""
    for name, sign in dialect.marks.signs.items():
        text = text.replace(name, sign)
    return text


@pytest.mark.full
def test_templates_with_tools_are_left_alone():
    assert needs_description(CHAT, [USER], [WEATHER]) and needs_description(CHAT, TALK, None)
    assert not needs_description(CHAT, [USER], None)
    assert not needs_description(CHAT + "{{ tools }}", TALK, [WEATHER])
