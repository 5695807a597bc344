"""Anthropic's messages as the messages that chat templates read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import loads
from typing import Any

from longdraft.errors import InputError
from longdraft.models.chat import Message, Turn, template_of
from longdraft.server.anthropic.anthropic_schema import (
    AnyBlock,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from longdraft.server.openai.chat_options import reads

CALL = "toolu_"  # the beginning of calls' ids, which templates do not get: Mistral's want 9 digits
BETWEEN = "\n\n"  # the texts of blocks, except those of an answer
# The first line of Claude Code's system prompt, in a block of its own. It differs in every request,
# so it would keep every prompt from being reused, and it is not meant for a model.
BILLING = "x-anthropic-billing-header:"
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
NO_THINKING = "disabled"


def messages_of(body: MessagesRequest) -> list[Message]:
    """The messages of a conversation; neighbors of one role are one message."""
    messages = list[Message]()
    for text in texts_of(body.system):
        if text.startswith(BILLING):
            text = text.partition("\n")[2]
        if text:
            _say(messages, "system", text)
    for message in body.messages:
        if message.role == "assistant":
            _answered(messages, message.content)
        else:
            _asked(messages, message.role, message.content)
    return messages


def texts_of(content: str | Sequence[AnyBlock]) -> Iterator[str]:
    """The texts of a content."""
    if isinstance(content, str):
        if content:
            yield content
        return
    for block in content:
        if isinstance(block, TextBlock) and block.text:
            yield block.text


def _say(messages: list[Message], role: str, text: str) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += BETWEEN + text
    else:
        messages.append({"role": role, "content": text})


def _asked(messages: list[Message], role: str, content: str | Sequence[AnyBlock]) -> None:
    """Add a message of the user or the system; each result of a tool is a message."""
    if isinstance(content, str):
        _say(messages, role, content)
        return
    for block in content:
        if isinstance(block, ToolResultBlock):
            id = block.tool_use_id.removeprefix(CALL)
            messages.append({"role": "tool", "tool_call_id": id, "content": _result(block)})
        else:
            for text in texts_of([block]):
                _say(messages, role, text)


def _result(block: ToolResultBlock) -> str:
    """The text of a tool's result; templates have no other place to say that it is an error."""
    text = BETWEEN.join(texts_of(block.content))
    if block.is_error and "error" not in text[:40].lower():
        return f"Error: {text}"
    return text


def _answered(messages: list[Message], content: str | Sequence[AnyBlock]) -> None:
    """Add an answer: its text, its reasoning and its calls."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    message = messages[-1]
    message["content"] += "".join(texts_of(content))
    for block in () if isinstance(content, str) else content:
        if isinstance(block, ThinkingBlock):
            message["reasoning_content"] = message.get("reasoning_content", "") + block.thinking
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": _arguments(block.input)}
            id = block.id.removeprefix(CALL)
            message.setdefault("tool_calls", []).append(
                {"id": id, "type": "function", "function": function}
            )


def _arguments(given: Any) -> dict[str, Any]:
    """The arguments of a call; those of a call that was cut are none."""
    if isinstance(given, str):
        given = read_object(given)
    return given if isinstance(given, dict) else {}


def read_object(text: str) -> dict[str, Any]:
    """The object that a text is in JSON; an empty one for any other text."""
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def turn_of(body: MessagesRequest, messages: list[Message], tokenizer: Any) -> Turn:
    """The end of the conversation: an answer at its end is continued.

    Its variables say whether and how much to think, where the template reads them.
    """
    last = messages[-1] if messages else {"role": ""}
    continues = last["role"] == "assistant" and "tool_calls" not in last and last["content"] != ""
    variables = dict[str, Any]()
    if body.thinking is not None and _reads(tokenizer, body, "enable_thinking"):
        variables["enable_thinking"] = body.thinking.type != NO_THINKING
    effort = EFFORTS.get(body.output_config.effort or "")
    if effort is not None and _reads(tokenizer, body, "reasoning_effort"):
        variables["reasoning_effort"] = effort
    return Turn(not continues, continues, variables)


def _reads(tokenizer: Any, body: MessagesRequest, variable: str) -> bool:
    """Whether the chat template reads a variable."""
    try:
        template = template_of(tokenizer, body.offer.tools)
    except InputError:
        return False  # reported when the prompt is rendered
    return reads(template, variable)
