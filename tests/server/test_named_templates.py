"""A model with several chat templates, as GGUF files and folders may have them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest
from support.served import CHAT, client, loaded, serving

TOOLS = "{% for t in tools %}{{ t.function.name }}\n{% endfor %}" + CHAT
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
MESSAGES = [{"role": "user", "content": "How is it in Bern?"}]
ASKED = {"model": "tiny", "messages": MESSAGES}


@pytest.fixture(scope="module")
def named() -> Iterator[tuple[httpx.Client, Any]]:
    """A client, and the server's tokenizer."""
    with serving() as server, client(server) as http:
        server.service.tokenizer = deepcopy(loaded()[1])
        server.service.tokenizer.chat_template = {"default": CHAT, "tool_use": TOOLS}
        yield http, server.service.tokenizer


@pytest.mark.parametrize(("more", "template"), [({}, CHAT), ({"tools": [TOOL]}, TOOLS)])
def test_tools_choose_the_template(named, more, template):
    http, tokenizer = named
    found = http.post("/tokenize", json=ASKED | more).json()["tokens"]
    tools = more.get("tools")
    wanted = tokenizer.apply_chat_template(
        MESSAGES, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(found) == wanted
    chat = http.post("/v1/chat/completions", json=ASKED | more | {"max_tokens": 4})
    assert chat.status_code == 200, chat.text
    assert chat.json()["usage"]["prompt_tokens"] == len(found)
    assert "system" not in wanted  # a template without tools has them described in such a message


def test_the_template_that_is_shown_is_the_default(named):
    http, _ = named
    assert http.get("/tokenizer_info").json()["chat_template"] == CHAT


def test_without_a_default_only_requests_with_tools_are_answered(named):
    http, tokenizer = named
    templates = tokenizer.chat_template
    tokenizer.chat_template = {"tool_use": TOOLS}
    try:
        refused = http.post("/v1/chat/completions", json=ASKED | {"max_tokens": 4})
        assert (
            refused.status_code == 400 and "cannot be chosen" in refused.json()["error"]["message"]
        )
        more = {"tools": [TOOL], "max_tokens": 4}
        assert http.post("/v1/chat/completions", json=ASKED | more).status_code == 200
        assert http.get("/tokenizer_info").json()["chat_template"] is None
    finally:
        tokenizer.chat_template = templates
