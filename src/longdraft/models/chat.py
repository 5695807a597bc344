"""A model's chat template: messages to tokens, where no message can write a special token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from longdraft.errors import InputError
from longdraft.models.text import token_ids

Message = dict[str, Any]  # {"role": "system" | "user" | "assistant" | "tool", "content": its text}, and tool calls
Tools = list[dict[str, Any]] | None
Render = Callable[[Any, list[Message], Tools], str]  # (tokenizer, messages, tools) -> text


def has_template(tokenizer: Any) -> bool:
    """Whether a model can be talked to."""
    return bool(getattr(tokenizer, "chat_template", None))


def render(tokenizer: Any, messages: list[Message], tools: Tools = None) -> str:
    """A conversation as the template writes it, up to where the model's answer begins. Raises InputError."""
    try:
        return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # jinja's errors, and those that templates raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"the model's chat template refuses this conversation: {reason[:200]}") from None


def chat_tokens(tokenizer: Any, messages: list[Message], tools: Tools = None, render: Render = render) -> list[int]:
    """The tokens of a conversation up to where the model's answer begins. tools: what the model may call.

    What the template writes is read with special tokens, what the messages say without, so a message that contains
    <|im_end|> is text. Raises InputError for a model without a chat template, and for messages that it refuses.
    """
    if not has_template(tokenizer):
        raise InputError(
            "this model has no chat template: give an instruction-tuned model, or use `longdraft generate`"
        )
    _check_tools(tokenizer, messages, tools)
    texts = [m for m in messages if m["content"] or "tool_calls" not in m]  # the others only call tools
    marks = [uuid4().hex for _ in texts]
    marked = {id(m): {**m, "content": mark} for m, mark in zip(texts, marks, strict=True)}
    rest = render(tokenizer, [marked.get(id(m), m) for m in messages], tools)
    found: list[int] = []
    for mark, message in zip(marks, texts, strict=True):
        before, here, rest = rest.partition(mark)
        if not here:
            raise InputError(
                f"the model's chat template has no place for a message of the {message['role']}: leave it out"
            )
        found += token_ids(tokenizer, before, True, add_special_tokens=False)
        found += token_ids(tokenizer, message["content"].strip(), False, add_special_tokens=False)
    return found + token_ids(tokenizer, rest, True, add_special_tokens=False)


def _check_tools(tokenizer: Any, messages: list[Message], tools: Tools) -> None:
    """Raises InputError for tools that the template does not write, or that would write a special token."""
    calls = [call for m in messages for call in m.get("tool_calls", ())]
    if not tools and not calls and all(m["role"] != "tool" for m in messages):
        return
    if "tools" not in str(tokenizer.get_chat_template(None, tools)):
        raise InputError("the model's chat template does not support tools: leave them out")
    text = repr((tools, calls))
    special = next((token for token in tokenizer.all_special_tokens if token in text), None)
    if special is not None:
        raise InputError(f"a tool's definition or call contains {special!r}, a token of the template: leave it out")
