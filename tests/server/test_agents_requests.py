"""Requests in the shapes that coding agents send are served, and a strict server refuses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.formats_of_calls import HERMES
from support.served import CHAT, TEXT, asked, client, loaded, serving, tokens_of

from longdraft.server.http.entry import Entry
from longdraft.server.openai import request_fields
from longdraft.server.openai.responses import ResponsesRequest

USER = {"role": "user", "content": "Rename walk to visit."}
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
OBJECTS = WITH_TOOLS.replace(
    "c.function.arguments | tojson", "c.function.arguments.items() | list | tojson"
)
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('one system message, and it is the first') }}{% endif %}"
    "{% endfor %}" + CHAT
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('there is no system role') }}{% endif %}{% endfor %}" + CHAT
)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "def walk(): ..."}


def called(arguments: str, **more: Any) -> list[dict[str, Any]]:
    """A conversation in which the model made a call with this text as arguments."""
    function = {"name": "read_file", "arguments": arguments}
    call = CALL | {"function": function}
    return [USER, {"role": "assistant", "tool_calls": [call], **more}, RESULT]


CODEX = {
    "model": "tiny",
    "instructions": "You edit files.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Permissions: read only."}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "Rename walk."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Looking.", "annotations": [{"a": 1}]}],
        },
        {"type": "function_call", "name": "exec_command", "arguments": '{"a', "call_id": "c1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": ""},
        {
            "type": "custom_tool_call",
            "name": "apply_patch",
            "input": "*** Begin Patch",
            "call_id": "c2",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "team",
            "tools": [{"type": "function", "name": "ask", "parameters": SCHEMA}],
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"installation": "i"},
    "text": {"verbosity": "low"},
    "truncation": "auto",
    "background": False,
    "max_tool_calls": 9,
}
OPENCODE = {
    "model": "tiny",
    "max_tokens": 32_000,
    "messages": [
        {"role": "system", "content": "You edit files."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Rename.", "cache_control": {"type": "ephemeral"}}
            ],
        },
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"index": 0}]},
        RESULT,
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "top_p": 1,
    "reasoning_effort": "medium",
    "stream_options": {"include_usage": True},
}
QWEN_CODE = {
    "model": "tiny",
    "max_tokens": 8000,
    "temperature": 0,
    "messages": [*called('{"path": "a.py"', content=None, reasoning_content=""), USER],
    "metadata": {"sessionId": "s", "promptId": "p"},
    "enable_thinking": False,
    "tools": [TOOL],
}
CONTINUE = {
    "model": "tiny",
    "messages": [USER, {"role": "assistant", "content": [], "tool_calls": []}, USER],
    "max_completion_tokens": -1,
    "cache_prompt": True,
    "thinking": {"type": "disabled"},
    "tools": [{"type": "function", "displayTitle": "Read", "function": TOOL["function"]}],
}
CLINE = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "You edit files."},
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "reasoning_details": [], "annotations": []},
        USER,
    ],
    "stream_options": {"include_usage": True},
    "reasoning": {"effort": "max"},
    "top_logprobs": 0,
}
OPENAI_AGENTS = {
    "model": "tiny",
    "messages": [
        USER,
        {"role": "assistant", "provider_specific_fields": {}, "tool_calls": [CALL]},
        RESULT,
    ],
    "tools": [TOOL | {"function": TOOL["function"] | {"name": "files.read" + "_x" * 40}}, TOOL],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "read_file"}}],
        },
    },
    "store": True,
    "prompt_cache_retention": "24h",
    "unknown_to_all": {"a": [1]},
}
CLAUDE_CODE = {
    "model": "claude-opus-5-5",
    "system": [
        {"type": "text", "text": "You edit files.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Rename walk."}]},
        {
            "role": "system",
            "content": "The folder is /work.",
            "output_config": {"effort": "medium"},
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I read it.", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "path is missing",
                    "is_error": True,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
    "tools": [{"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA}],
    "metadata": {"user_id": "u"},
    "max_tokens": 128_000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
}
CHATS = {
    "opencode": OPENCODE,
    "qwen code": QWEN_CODE,
    "continue": CONTINUE,
    "cline": CLINE,
    "openai-agents": OPENAI_AGENTS,
}


@pytest.fixture(scope="module")
def strict() -> Iterator[httpx.Client]:
    with serving(strict=True) as server, client(server) as found:
        yield found


def read(asked: list[dict[str, Any]]) -> str:
    """The last prompt that the model was given."""
    return loaded()[1].decode(asked[-1]["prompt"])


@pytest.mark.parametrize("name", CHATS)
def test_an_agents_chat_is_served_and_strictly_refused(http, strict, says, name):
    says(WITH_TOOLS, "Done.")
    found = http.post("/v1/chat/completions", json=CHATS[name])
    assert found.status_code == 200, found.text
    assert found.json()["choices"][0]["message"]["content"] == "Done."
    assert strict.post("/v1/chat/completions", json=CHATS[name]).status_code == 400


def test_an_agents_response_is_served_and_strictly_refused(http, strict, says):
    asked = says(WITH_TOOLS, "Done.")
    found = http.post("/v1/responses", json=CODEX)
    assert found.status_code == 200, found.text
    prompt = read(asked)
    for text in ("Permissions", "Looking.", "*** Begin Patch", "Done"):
        assert text in prompt
    ignored = found.headers["x-longdraft-ignored"].split(", ")
    assert {"verbosity", "truncation", "input.web_search_call"} <= set(ignored)
    assert not {"client_metadata", "phase", "background"} & set(ignored)
    assert strict.post("/v1/responses", json=CODEX).status_code == 400


def test_an_agents_message_is_served(http, says):
    asked = says(WITH_TOOLS, "Done.")
    found = http.post("/v1/messages?beta=true", json=CLAUDE_CODE)
    assert found.status_code == 200, found.text
    assert found.json()["content"] == [{"type": "text", "text": "Done."}]
    prompt = read(asked)
    for text in ("You edit files.", "The folder is /work.", "path is missing", "Reads a file."):
        assert text in prompt


STRICT_MESSAGE = {
    "model": "tiny",
    "max_tokens": 2,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}],
}
UNKNOWN = {
    "a field": {"context_management": {}},
    "a field of a block": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi.", "nothing": 1}]}]
    },
    "a field of a tool": {"tools": [{"name": "a", "input_schema": SCHEMA, "nothing": 1}]},
    "a tool that runs elsewhere": {"tools": [{"name": "a", "type": "web_search_20260209"}]},
    "a block that is not read": {
        "messages": [{"role": "user", "content": [{"type": "container_upload"}]}]
    },
    "another server": {"mcp_servers": [{"url": "x"}]},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_strict_server_refuses_what_a_message_asks_in_vain(http, strict, says, name):
    says(WITH_TOOLS, "Done.")
    body = STRICT_MESSAGE | UNKNOWN[name]
    assert http.post("/v1/messages", json=body).status_code == 200
    found = strict.post("/v1/messages", json=body)
    assert found.status_code == 400 and found.json()["type"] == "error"
    assert strict.post("/v1/messages", json=STRICT_MESSAGE).status_code == 200


# Groups of functions ------------------------------------------------------------------------------

GROUPED = {
    "model": "tiny",
    "input": [
        {"role": "user", "content": "Ask."},
        {
            "type": "function_call",
            "namespace": "team",
            "name": "ask",
            "arguments": "{}",
            "call_id": "c1",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "nobody"},
    ],
    "tools": [
        {"type": "function", "name": "ask", "parameters": SCHEMA},
        {
            "type": "namespace",
            "name": "team",
            "description": "Others.",
            "tools": [
                {"type": "function", "name": "ask", "parameters": SCHEMA, "defer_loading": True},
                {"type": "custom", "name": "patch"},
            ],
        },
    ],
}


def test_a_group_of_functions_is_offered_and_its_calls_name_it(http, says):
    written = '<tool_call>\n{"name": "team__ask", "arguments": {"path": "x"}}\n</tool_call>'
    asked = says(HERMES, written)
    found = http.post("/v1/responses", json=GROUPED)
    assert found.status_code == 200, found.text
    (call,) = found.json()["output"]
    assert (call["namespace"], call["name"]) == ("team", "ask")
    assert json.loads(call["arguments"]) == {"path": "x"}
    assert [t.get("namespace") for t in found.json()["tools"]] == [None, "team"]
    assert "tools.custom" in found.headers["x-longdraft-ignored"]
    assert "team__ask" in read(asked)


def test_an_earlier_call_of_a_group_has_the_name_that_the_model_wrote():
    called = ResponsesRequest.model_validate(GROUPED).messages[1]
    assert called["tool_calls"][0]["function"]["name"] == "team__ask"


def test_a_function_of_a_group_can_be_chosen(http, says):
    says(HERMES, "Done.")
    choice = {"type": "function", "name": "ask", "namespace": "team"}
    assert http.post("/v1/responses", json=GROUPED | {"tool_choice": choice}).status_code == 200
    choice["namespace"] = "nobody"
    found = http.post("/v1/responses", json=GROUPED | {"tool_choice": choice})
    assert found.status_code == 400 and "nobody__ask" in found.text


def test_a_group_in_a_group_is_left_out(http, says):
    says(HERMES, "Done.")
    tool = GROUPED["tools"][1]
    for _ in range(400):
        tool = {"type": "namespace", "name": "outer", "tools": [tool]}
    found = http.post("/v1/responses", json=GROUPED | {"tools": [tool]})
    assert found.status_code == 200 and found.json()["tools"] == []
    assert "tools.namespace" in found.headers["x-longdraft-ignored"]


def test_a_call_of_another_group_stays_without_one(http, says):
    says(HERMES, '<tool_call>\n{"name": "ask", "arguments": {"path": "x"}}\n</tool_call>')
    (call,) = http.post("/v1/responses", json=GROUPED).json()["output"]
    assert call["name"] == "ask" and "namespace" not in call


# Fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [False, True])
def test_an_unknown_field_is_reported(http, monkeypatch, fault):
    if fault:
        monkeypatch.setattr(Entry, "ignore", lambda self, name: None)
    found = http.post("/v1/completions", json=asked(max_tokens=1, nothing=1, other={"x": 2}))
    assert found.status_code == 200
    assert (found.headers.get("x-longdraft-ignored") == "nothing, other") != fault


def test_a_field_cannot_write_a_header(http):
    names = {"a\r\nx-evil: 1": 1, "\u00e9": 1, "x" * 200: 1}
    found = http.post("/v1/completions", json=asked(max_tokens=1) | names)
    assert found.headers["x-longdraft-ignored"] == "(unnamed)"
    many = {f"field{i}": 1 for i in range(40)}
    found = http.post("/v1/completions", json=asked(max_tokens=1) | many)
    assert len(found.headers["x-longdraft-ignored"].split(", ")) == 16


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("field", sorted(request_fields.UNSUPPORTED - {"prompt", "suffix"}))
def test_a_field_with_an_effect_stays_an_error_and_empty_ones_do_not(
    http, monkeypatch, field, fault
):
    from longdraft.server.openai.schema import CompletionRequest

    if fault:
        monkeypatch.setattr(CompletionRequest, "unsupported", frozenset())
    found = http.post("/v1/completions", json=asked(max_tokens=1) | {field: "x"})
    assert (found.status_code == 400) != fault
    for empty in (None, False, "", []):
        body = asked(max_tokens=1) | {field: empty}
        assert http.post("/v1/completions", json=body).status_code == 200


# Lengths ------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("wanted", [-1, 257, 32_000])
def test_max_tokens_is_lowered(http, wanted):
    room = 512 - len(tokens_of(TEXT * 20))
    assert 0 < room < 256
    for prompt, most in ((TEXT, 256), (TEXT * 20, room)):
        found = http.post("/v1/completions", json=asked(prompt=prompt, max_tokens=wanted))
        assert found.status_code == 200, found.text
        assert found.json()["usage"]["completion_tokens"] == most
        assert found.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.full
def test_a_strict_server_refuses_too_many_tokens(strict):
    for body in (asked(max_tokens=257), asked(prompt=TEXT * 20, max_tokens=250)):
        found = strict.post("/v1/completions", json=body)
        assert found.status_code == 400 and found.json()["error"]["param"] == "max_tokens"
    assert strict.post("/v1/completions", json=asked(max_tokens=-1)).status_code == 200


# Histories ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", "not JSON", ""])
@pytest.mark.parametrize("template", [WITH_TOOLS, OBJECTS], ids=["text", "objects"])
def test_arguments_that_were_cut_come_back(http, strict, says, arguments, template):
    asked = says(template, "Done.")
    body = {"model": "tiny", "messages": called(arguments), "tools": [TOOL]}
    found = http.post("/v1/chat/completions", json=body)
    assert found.status_code == 200, found.text
    if template is WITH_TOOLS and arguments:
        assert json.dumps(arguments) in read(asked)
    assert strict.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize("fault", [False, True])
def test_system_messages_are_one_where_the_template_takes_one(http, says, monkeypatch, fault):
    if fault:
        monkeypatch.setattr("longdraft.server.decode.history._one_system", lambda given: given)
    asked = says(ONE_SYSTEM, "Done.")
    roles = [{"role": "system", "content": "First."}, USER]
    body = {"model": "tiny", "messages": [*roles, {"role": "developer", "content": "Second."}]}
    found = http.post("/v1/chat/completions", json=body)
    assert (found.status_code == 200) != fault
    if not fault:
        assert "<system>First.\n\nSecond.\n<user>" in read(asked)


@pytest.mark.parametrize("fault", [False, True])
def test_a_template_without_the_systems_role_reads_its_text_in_the_first_message(
    http, says, monkeypatch, fault
):
    if fault:
        changed = "longdraft.server.decode.history._in_first_user"
        monkeypatch.setattr(changed, lambda text, others: others)
    asked = says(NO_SYSTEM, "Done.")
    system = [{"role": "system", "content": "First."}, {"role": "developer", "content": "Second."}]
    body = {"model": "tiny", "messages": [*system, USER]}
    found = http.post("/v1/chat/completions", json=body)
    assert found.status_code == 200
    assert (f"<user>First.\n\nSecond.\n\n{USER['content']}" in read(asked)) != fault


def test_an_effort_of_none_turns_the_reasoning_off(http, says):
    template = "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}" + CHAT
    asked = says(template, "Done.")
    for fields in (
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning": {"effort": "none"}},
    ):
        body = {"model": "tiny", "messages": [USER]} | fields
        found = http.post("/v1/chat/completions", json=body)
        assert found.status_code == 200 and read(asked).startswith("[False]")


@pytest.mark.full
def test_allowed_tools_are_offered_alone(http, says):
    asked = says(WITH_TOOLS, "Done.")
    assert http.post("/v1/chat/completions", json=OPENAI_AGENTS).status_code == 200
    assert "read_file" in read(asked) and "files.read" not in read(asked)
