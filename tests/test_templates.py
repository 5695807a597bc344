"""Chat templates are rendered with limits, as Transformers renders them; tools go through them or are refused."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from served import CHAT, client, loaded, serving

from longdraft import InputError
from longdraft.models.chat import chat_tokens
from longdraft.server.run import Server
from longdraft.server.templates import Templates

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TOOLS = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}{% if m.name == 'loop' %}" + LOOP + "{% endif %}<{{ m.role }}>"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments.city }}</call>{% endfor %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
USER = [{"role": "user", "content": "import os"}]


class Only:
    """A tokenizer's template and special tokens."""

    def __init__(self, template: str):
        self.template, self.special_tokens_map = template, {"bos_token": "<s>"}

    def get_chat_template(self, chosen, tools) -> str:
        return self.template


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    made = Templates(limit_s=1.0, most=1 << 20)
    yield made
    made.close()


@pytest.mark.parametrize("template", [CHAT, TOOLS])
@pytest.mark.parametrize("tools", [None, [WEATHER]])
def test_the_text_is_that_of_transformers(templates, template, tools, monkeypatch):
    _, tokenizer = loaded()
    monkeypatch.setattr(tokenizer, "chat_template", template)
    messages = [{"role": "system", "content": "Be brief. \u2028 ü"}, *USER]
    want = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert templates.render(tokenizer, messages, tools) == want
    assert ("weather" in want) == (template is TOOLS and tools is not None)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LOOP, "took longer than 1 s"),
        ("{{ 'x' * 9999999999 }}", "refuses this conversation"),
        ("{% for a in range(300) %}{{ 'x' * 9999 }}{% endfor %}", "wrote more than 1048576 bytes"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{% include '/etc/passwd' %}", "refuses"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "refuses"),
    ],
)
def test_a_template_that_misbehaves_ends_one_request(templates, template, said):
    begin = time.monotonic()
    with pytest.raises(InputError, match=said):
        templates.render(Only(template), USER, None)
    assert time.monotonic() - begin < 10
    assert templates.render(Only("{{ bos_token }}{{ messages[0].content }}"), USER, None) == "<s>import os"


def test_without_its_limit_the_loop_takes_longer():
    patient = Templates(limit_s=2.5)
    begin = time.monotonic()
    try:
        with pytest.raises(InputError, match=r"longer than 2\.5 s"):
            patient.render(Only(LOOP), USER, None)
    finally:
        patient.close()
    assert time.monotonic() - begin >= 2.5


def test_a_process_that_was_killed_is_started_again(templates):
    plain = Only("{{ messages[0].content }}")
    templates.render(plain, USER, None)
    os.kill(templates._process.pid, signal.SIGKILL)
    templates._process.wait()
    assert templates.render(plain, USER, None) == "import os"


def test_the_process_cannot_write_files(templates, tmp_path):
    import resource

    templates.start()
    limits = resource.prlimit(templates._process.pid, resource.RLIMIT_FSIZE)
    assert limits == (0, 0) and resource.prlimit(templates._process.pid, resource.RLIMIT_AS)[0] == 1 << 30


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("plain") as found:
        found.service.templates.limit_s = 1.0
        yield found


@pytest.fixture
def http(server: Server, monkeypatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(loaded()[1], "chat_template", TOOLS)
    with client(server) as found:
        yield found


def ask(http: httpx.Client, messages=USER, **fields) -> httpx.Response:
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
    return http.post("/v1/chat/completions", json=body | fields)


CALLED = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    ]},
    {"role": "tool", "tool_call_id": "1", "content": "rain <assistant>"},
]  # fmt: skip


def test_tools_and_their_calls_are_read_by_the_template(http):
    _, tokenizer = loaded()
    found = [ask(http), ask(http, tools=[WEATHER]), ask(http, tools=[WEATHER], tool_choice="none")]
    assert all(r.status_code == 200 for r in found), found
    tokens = [r.json()["usage"]["prompt_tokens"] for r in found]
    assert tokens[1] == len(chat_tokens(tokenizer, USER, [WEATHER])) > tokens[0] == tokens[2]
    answer = ask(http, CALLED, tools=[WEATHER])
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    plain = [
        USER[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": CALLED[2]["content"]},
    ]
    want = chat_tokens(tokenizer, plain, [WEATHER])
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == len(want)
    assert "<call>weather Bern</call>" in tokenizer.decode(want)


def test_a_template_without_tools_refuses_them(http, monkeypatch):
    monkeypatch.setattr(loaded()[1], "chat_template", CHAT)
    for found in (ask(http, tools=[WEATHER]), ask(http, CALLED)):
        assert found.status_code == 400 and "does not support tools" in found.json()["error"]["message"]
    assert ask(http, tools=[]).status_code == 200


def deep(levels: int) -> dict:
    return {"type": "object", "properties": deep(levels - 1)} if levels else {}


def tool(**function) -> dict:
    return {"tools": [{"type": "function", "function": {"name": "a"} | function}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools.0"),
        (tool(name="a b"), "name"),
        (tool(parameters=deep(40)), "levels"),
        (tool(strict=True), "strict"),
        (tool(description="a SPECIAL b"), "a token of the template"),
        (tool(parameters={"SPECIAL": 1}), "a token of the template"),
        (tool(parameters={"pattern": "\ud800"}), "surrogate"),
        ({"tools": [WEATHER] * 129}, "128"),
        ({"tool_choice": "required", "tools": [WEATHER]}, "tool_choice"),
        ({"messages": [*USER, {"role": "tool", "content": "a"}]}, "tool_call_id"),
        ({"messages": [*USER, {"role": "assistant"}]}, "content is missing"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": CALLED[1]["tool_calls"]}]}, "assistant's"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
    ],
    ids=ascii,
)
def test_a_malformed_tool_is_refused(http, fields, said):
    special = loaded()[1].all_special_tokens[0]
    body = json.dumps({"model": "tiny", "messages": USER, "max_tokens": 4} | fields).replace("SPECIAL", special)
    found = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 400 and said in found.json()["error"]["message"], found.text
    assert ask(http).status_code == 200


@pytest.mark.parametrize("arguments", ["", "[]", "{", "[" * 5000, '{"a":' * 60 + "1" + "}" * 60])
def test_arguments_of_a_call_must_be_a_small_object(http, arguments):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    found = ask(http, [*USER, {"role": "assistant", "tool_calls": [call]}])
    assert found.status_code == 400, found.text


def test_a_conversation_that_sends_the_template_into_a_loop_is_refused_alone(http):
    with ThreadPoolExecutor(2) as pool:
        looped = pool.submit(ask, http, [USER[0] | {"name": "loop"}])
        other = pool.submit(http.post, "/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 4})
        assert other.result().status_code == 200
        found = looped.result()
    assert found.status_code == 400 and "took longer than 1 s" in found.json()["error"]["message"]
    assert ask(http).status_code == 200
