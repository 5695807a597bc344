"""Published chat templates: the prompt is Transformers' own, and no control token in it is a
client's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from support import templates_published
from support.templates import byte_level
from support.templates_published import PUBLISHED, WHEELS
from transformers.utils.chat_template_utils import render_jinja_template

from longdraft import load
from longdraft.models import fetch
from longdraft.models.chat import chat_tokens
from longdraft.models.template_process import rendered

pytestmark = pytest.mark.full
CODE = "    def f(x):\n        return x  # \\ \"é\" 'a' & <b>\n"
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
USER = {"role": "user", "content": f"{CODE}\nWhat is it?  "}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": " The weather,\n  in a city ",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "days": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"n": {"type": ["number", "null"]}}},
                },
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            },
            "required": ["city"],
        },
    },
}
CALL = {"name": "weather", "arguments": {"city": "Bern", "days": [1, {"n": None}]}}
CALLED: list[dict[str, Any]] = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": CALL}],
    },
    {
        "role": "tool",
        "tool_call_id": "call00001",
        "name": "weather",
        "content": '{"rain": "  much"}\n',
    },
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "code": ([USER], None),
    "system": ([SYSTEM, USER], None),
    "turns": ([SYSTEM, USER, {"role": "assistant", "content": f"  Code:\n{CODE}"}, USER], None),
    "thoughts": (
        [USER, {"role": "assistant", "content": f"<think>\nwhy\n</think>\n\n{CODE}"}, USER],
        None,
    ),
    "tools": ([SYSTEM, USER], [TOOL]),
    "calls": (CALLED, [TOOL]),
}
WITHOUT_TOOLS = {"Llama 3", "Gemma 3", "DeepSeek R1", "SmolLM2"}
READ = ("<think>", "</think>")  # templates look for these in an assistant's messages
KEYWORDS = {
    "function",
    "object",
    "string",
    "array",
    "number",
    "null",
    "call00001",
    "user",
    "assistant",
    "system",
    "tool",
}


@cache
def tokenizer_of(model: str) -> Any:
    """A byte-level tokenizer with the model's control tokens and template; SmolLM2 has its own."""
    if model == "SmolLM2":
        if not fetch.is_there("smollm2"):
            pytest.skip("smollm2 is not in the cache: run `longdraft fetch smollm2`")
        return load("smollm2")[1]
    published = PUBLISHED[model]
    made = byte_level(published.special, published.unmarked)
    made.chat_template = text_of(model)
    return made


def text_of(model: str) -> str:
    try:
        return PUBLISHED[model].text
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the published templates cannot be had: {error}")


def control_of(tokenizer: Any) -> dict[int, str]:
    added = tokenizer.added_tokens_decoder.items()
    return {id: token.content for id, token in added if not re.fullmatch(r"[\w ]+", token.content)}


def cases() -> list[tuple[str, str]]:
    models = [*PUBLISHED, "SmolLM2"]
    return [
        (m, c)
        for m in models
        for c in CONVERSATIONS
        if not (CONVERSATIONS[c][1] and m in WITHOUT_TOOLS)
    ]


@pytest.mark.parametrize(("model", "conversation"), cases())
def test_the_prompt_is_that_of_transformers(model, conversation):
    tokenizer, (messages, tools) = tokenizer_of(model), CONVERSATIONS[conversation]
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": True}
    want = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    found = chat_tokens(tokenizer, messages, tools)
    assert tokenizer.decode(found) == want
    if conversation != "thoughts":
        assert found == tokenizer.apply_chat_template(messages, return_dict=False, **options)
    elif model in ("Qwen 3", "DeepSeek R1"):
        assert "why" not in want


def changed(value: Any, change: Callable[[str], str], names: bool = False) -> Any:
    """A conversation in which each text that a client chooses was changed. names: whether its keys
    are such texts.
    """
    if isinstance(value, list):
        return [changed(inner, change) for inner in value]
    if isinstance(value, dict):
        chosen = ("properties", "arguments")
        return {
            change(k) if names else k: changed(inner, change, k in chosen)
            for k, inner in value.items()
        }
    return change(value) if isinstance(value, str) and value not in KEYWORDS else value


@pytest.mark.parametrize(("model", "conversation"), cases())
def test_no_text_of_a_client_is_a_control_token(model, conversation):
    """The control tokens are those of the same conversation with harmless words in their place."""
    tokenizer, (messages, tools) = tokenizer_of(model), CONVERSATIONS[conversation]
    control = control_of(tokenizer)
    for token in control.values():
        said = []
        for word in (token, re.sub(r"\W", "x", token)):
            given, offered = changed(
                [messages, tools], lambda text, word=word: f"{word} {text}{word}"
            )
            if token in READ:  # templates look for these in an answer
                given = [
                    m if m["role"] == "assistant" else new
                    for m, new in zip(messages, given, strict=True)
                ]
            want = tokenizer.apply_chat_template(
                given, tools=offered, tokenize=False, add_generation_prompt=True
            )
            said.append(chat_tokens(tokenizer, given, offered))
            assert tokenizer.decode(said[-1]) == want
        hostile, harmless = ([control[id] for id in ids if id in control] for ids in said)
        assert hostile == harmless != []


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("package", WHEELS)
def test_every_template_of_a_package_can_be_followed(package, conversation):
    """Whatever Transformers renders, ours renders with marks, to the same text."""
    try:
        texts = templates_published.read(package)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the published templates cannot be had: {error}")
    messages, tools = CONVERSATIONS[conversation]
    given = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    marks = {chr(char): chr(0x100000 + char) for char in range(33, 127)}
    done = 0
    for name, text in texts.items():
        try:
            want = render_jinja_template([messages], tools, None, text, **given)[0][0]
        except Exception:  # a template without tools or a system, for example
            continue
        question = {
            "template": text,
            "messages": messages,
            "tools": tools,
            "given": given,
            "marks": marks,
        }
        marked = rendered(question).get("marked", "")
        assert marked.translate({ord(mark): char for char, mark in marks.items()}) == want, name
        assert marked != want, name
        done += 1
    assert done > len(texts) // 2
