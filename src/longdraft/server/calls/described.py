"""Tools for a model whose chat template does not support them: described in a system message."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any

from longdraft.models.chat import Message
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.hermes import CLOSE, OPEN, Hermes
from longdraft.server.calls.llama import TAG, Llama
from longdraft.server.calls.mistral_calls import CALLS, Mistral

Call = dict[str, Any]  # a function's name and arguments
RESULTS = ("<tool_response>", "</tool_response>")


def nearest_format(vocabulary: dict[str, int]) -> type[CallFormat]:
    """The format of which the vocabulary has the mark, or else Hermes's, whose tags are text."""
    if CALLS in vocabulary:
        return Mistral
    if TAG in vocabulary:
        return Llama
    return Hermes


def needs_description(template: str, messages: Sequence[Message], tools: Any) -> bool:
    """Tells whether a conversation has tools, or calls of them, that a template does not write."""
    if "tools" in template:
        return False
    return bool(tools) or any("tool_calls" in m or m["role"] == "tool" for m in messages)


def described(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, kind: type[CallFormat]
) -> list[Message]:
    """The conversation as messages without tools.

    The system message describes the tools and the format of calls. Earlier calls are a part of the
    assistant's texts, and their results are the user's.
    """
    made = list[Message]()
    follows_results = False
    for message in messages:
        role = "user" if message["role"] == "tool" else message["role"]
        text = _text(message, kind)
        results = message["role"] == "tool"
        if made and role == "user" == made[-1]["role"] and (results or follows_results):
            made[-1] = made[-1] | {"content": f"{made[-1]['content']}\n{text}"}
        else:
            others = {k: v for k, v in message.items() if k not in ("tool_calls", "tool_call_id")}
            made.append(others | {"role": role, "content": text})
        follows_results = results
    if not tools:
        return made
    about = _description(tools, kind)
    if made and made[0]["role"] == "system":
        return [made[0] | {"content": f"{made[0]['content']}\n\n{about}".lstrip()}, *made[1:]]
    return [{"role": "system", "content": about}, *made]


def _text(message: Message, kind: type[CallFormat]) -> str:
    text = message.get("content") or ""
    if message["role"] == "tool":
        return f"{RESULTS[0]}\n{text}\n{RESULTS[1]}"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return text
    return f"{text}\n{_written(calls, kind)}".lstrip()


def _description(tools: Sequence[dict[str, Any]], kind: type[CallFormat]) -> str:
    listed = "\n".join(dumps(tool, ensure_ascii=False) for tool in tools)
    example = '{"name": NAME, "arguments": {ARGUMENT: VALUE}}'
    forms = {
        Mistral: f"{CALLS}[{example}]",
        Llama: example.replace("arguments", "parameters"),
    }
    form = forms.get(kind, f"{OPEN}\n{example}\n{CLOSE}")
    return (
        "# Tools\n\nYou can call these functions. Each line is one function, and its parameters "
        f"are a JSON schema:\n<tools>\n{listed}\n</tools>\n\nTo call a function, write its name and"
        f" arguments as JSON, and nothing else:\n{form}\n\nThe next message has the result between "
        f"{RESULTS[0]} and {RESULTS[1]}. If no function is needed, answer in plain text."
    )


def _written(calls: Sequence[Call], kind: type[CallFormat]) -> str:
    """Calls in the text of an earlier answer."""
    key = "parameters" if kind is Llama else "arguments"
    objects = [
        dumps({"name": call["name"], key: call["arguments"]}, ensure_ascii=False) for call in calls
    ]
    if kind is Mistral:
        return f"{CALLS}[{', '.join(objects)}]"
    if kind is Llama:
        return "; ".join(objects)
    return "\n".join(f"{OPEN}\n{text}\n{CLOSE}" for text in objects)
