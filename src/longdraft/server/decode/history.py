"""Conversations as templates take them that refuse what clients send back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from longdraft.errors import TemplateRefusal
from longdraft.models.chat import Message


def first_taken(messages: list[Message], tokens: Callable[[list[Message]], list[int]]) -> list[int]:
    """The tokens of the first form of a conversation that the template does not refuse.

    Raises TemplateRefusal, about the conversation as it came.
    """
    try:
        return tokens(messages)
    except TemplateRefusal as error:
        for form in _forms(messages):
            try:
                return tokens(form)
            except TemplateRefusal:
                pass
        raise error


def _forms(messages: list[Message]) -> Iterator[list[Message]]:
    """Other forms: arguments that are no object become an empty one; one system message; and none,
    for a template without that role.
    """
    objects = [_with_objects(message) for message in messages]
    if objects != messages:
        yield objects
    merged = _one_system(objects)
    if merged != objects:
        yield merged
    if merged and merged[0]["role"] == "system":
        yield _in_first_user(merged[0]["content"], merged[1:])


def _with_objects(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = []
    for call in calls:
        function = call["function"]
        if not isinstance(function["arguments"], dict):
            call = call | {"function": function | {"arguments": {}}}
        changed.append(call)
    return message | {"tool_calls": changed}


def _one_system(messages: list[Message]) -> list[Message]:
    """The messages with all system messages as one, the first."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    if not system:
        return messages
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(system)}, *others]


def _in_first_user(text: str, others: list[Message]) -> list[Message]:
    """The other messages with the system's text at the beginning of the first one, the user's."""
    if others and others[0]["role"] == "user":
        first = others[0] | {"content": f"{text}\n\n{others[0]['content']}"}
        return [first, *others[1:]]
    return [{"role": "user", "content": text}, *others]
