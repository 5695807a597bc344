"""Chat templates of GGUF files by name: which of them a conversation is rendered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gguf_files import ARRAY, STRING, saved
from support.gguf_vocabularies import built

from longdraft import load
from longdraft.errors import InputError
from longdraft.models.chat import chat_tokens, has_template
from longdraft.models.gguf.file import GGUF
from longdraft.models.gguf.tokenizer import chat_template
from longdraft.models.templates import Templates

ONE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TWO = "{{ tools[0].function.name }}" + ONE
RAG = "{{ documents }}"
KEY = "tokenizer.chat_template"
NAMES = "tokenizer.chat_templates"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
USER = [{"role": "user", "content": "hi"}]


def template(**metadata: Any) -> str | dict[str, str] | None:
    known = {f"{KEY}.{name}": text for name, text in metadata.items()}
    named = {NAMES: sorted(metadata)} if metadata else {}
    return chat_template(GGUF(Path("model.gguf"), named | known, {}))


def test_a_single_template_is_a_text():
    assert template() is None and template(default=ONE) == ONE
    assert chat_template(GGUF(Path("f"), {KEY: ONE}, {})) == ONE
    assert template(rag=RAG) is None  # it is none for conversations


def test_templates_have_names():
    wanted = {"default": ONE, "tool_use": TWO, "rag": RAG}
    assert template(**wanted) == wanted
    named = {f"{KEY}.tool_use": TWO, f"{KEY}.rag": RAG, NAMES: ["rag", "tool_use"]}
    assert chat_template(GGUF(Path("f"), {KEY: ONE} | named, {})) == wanted
    both = {KEY: ONE, f"{KEY}.default": TWO}
    assert chat_template(GGUF(Path("f"), both, {})) == ONE
    unlisted = {KEY: ONE, f"{KEY}.tool_use": TWO}
    assert chat_template(GGUF(Path("f"), unlisted, {})) == {"default": ONE, "tool_use": TWO}


def test_early_templates_for_tools_of_another_form_are_left_out():
    own = "{{ tools[0].parameter_definitions }}"
    assert template(default=ONE, tool_use=own) == ONE
    newer = own + "{{ tools[0].function }}"
    assert template(default=ONE, tool_use=newer) == {"default": ONE, "tool_use": newer}


@pytest.mark.parametrize("metadata", [{KEY: 3}, {f"{KEY}.tool_use": 3}, {NAMES: "tool_use"}])
def test_a_template_that_is_no_text_is_one_line(metadata):
    with pytest.raises(InputError, match="not of type") as found:
        chat_template(GGUF(Path("f"), metadata, {}))
    assert "\n" not in str(found.value)


# Conversations ------------------------------------------------------------------------------------


def named(metadata: dict[str, Any], tensors: Any) -> None:
    metadata[KEY] = STRING, ONE
    metadata[f"{KEY}.tool_use"] = STRING, TWO
    metadata[NAMES] = ARRAY, (STRING, ["tool_use"])


def check_choice(tokenizer: Any) -> None:
    templates = Templates()
    try:
        for tools, text in ((None, "hi"), ([TOOL], "weatherhi")):
            tokens = chat_tokens(tokenizer, USER, tools, templates.render)
            assert tokenizer.decode(tokens) == text
            assert tokenizer.apply_chat_template(USER, tools=tools, tokenize=False) == text
    finally:
        templates.close()


def test_requests_with_tools_have_their_own_template(tmp_path):
    _, tokenizer = load(str(saved(tmp_path, change=named)), "float32")
    assert has_template(tokenizer)
    check_choice(tokenizer)
    tokenizer.chat_template = ONE  # which does not write tools
    with pytest.raises(InputError):
        check_choice(tokenizer)


def test_a_template_for_tools_alone_is_no_default():
    made = built(["hi", "weather"], pre="gpt-2")
    made.chat_template = {"tool_use": TWO}
    with pytest.raises(InputError, match="cannot be chosen"):
        chat_tokens(made, USER)
