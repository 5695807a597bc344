"""The parts of an answer in the shape of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from longdraft.server.calls.answer_reader import AnswerPart

FIELDS = {"content": "content", "reasoning": "reasoning_content"}


def delta_of(parts: Iterable[AnswerPart], call_id: Callable[[], str]) -> dict[str, Any]:
    """The delta of a stream's chunk.

    A call's id and name come with its first part, and each part adds arguments.
    """
    delta: dict[str, Any] = {}
    for kind, text, index in parts:
        calls = delta.get("tool_calls", [])
        if kind in FIELDS:
            delta[FIELDS[kind]] = delta.get(FIELDS[kind], "") + text
        elif kind == "call":
            function = {"name": text, "arguments": ""}
            call = {"index": index, "id": call_id(), "type": "function", "function": function}
            delta["tool_calls"] = [*calls, call]
        elif calls and calls[-1]["index"] == index:
            calls[-1]["function"]["arguments"] += text
        else:
            delta["tool_calls"] = [*calls, {"index": index, "function": {"arguments": text}}]
    return delta


def message_of(parts: Iterable[AnswerPart], call_id: Callable[[], str]) -> dict[str, Any]:
    """A whole message; its content is null if it has calls and no content."""
    delta = delta_of(parts, call_id)
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for call in delta.pop("tool_calls", [])
    ]
    message = {"role": "assistant", "content": None if calls else "", "refusal": None} | delta
    return message | ({"tool_calls": calls} if calls else {})
