"""Rewrites the messages of Ollama's API as those of OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Fields = dict[str, Any]
Pending = list[tuple[str, Any]]  # id and name of each call that has no result yet


def as_openai(messages: Any) -> Any:
    """The messages with OpenAI's names, and an id for each call and its result.

    Ollama's results name the function at most, so they answer the first open call of this name, or
    else the first one. Values of other types are left to the schema.
    """
    if not isinstance(messages, list):
        return messages
    ids = _ids()
    pending: Pending = []
    return [_message(m, ids, pending) if isinstance(m, dict) else m for m in messages]


def _ids() -> Iterator[str]:
    """Ids of 9 letters and digits, the form that Mistral's templates require."""
    number = 0
    while True:
        yield f"call{number:05d}"
        number += 1


def _message(given: Fields, ids: Iterator[str], pending: Pending) -> Fields:
    message = {key: value for key, value in given.items() if value is not None}
    if "thinking" in message:
        thinking = message.pop("thinking")
        if thinking:
            message.setdefault("reasoning_content", thinking)
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_call(call, ids, pending) for call in calls]
        if not calls:
            del message["tool_calls"]
    name = message.pop("tool_name", None)
    if message.get("role") == "tool" and "tool_call_id" not in message:
        message["tool_call_id"] = _answered(name or message.get("name"), ids, pending)
    return message


def _call(call: Any, ids: Iterator[str], pending: Pending) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    function = {key: value for key, value in function.items() if key != "index"}
    if not isinstance(arguments := function.get("arguments") or {}, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    id = call.get("id") or next(ids)
    pending.append((id, function.get("name")))
    return call | {"id": id, "function": function}


def _answered(name: Any, ids: Iterator[str], pending: Pending) -> str:
    """The id of the call that a result answers; a new one if no call is open."""
    if not pending:
        return next(ids)
    same = (entry for entry in pending if entry[1] == name)
    entry = next(same, pending[0])
    pending.remove(entry)
    return entry[0]
