"""An answer's parts as objects of Ollama's API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from json import dumps, loads
from typing import Any

from longdraft.server.calls.answer_reader import AnswerPart

Json = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def answer_object(
    model: str, chat: bool, text: str, thinking: str = "", calls: Iterable[Json] = (), **more: Any
) -> Json:
    """An object of an answer; one with `more` is the last."""
    fields: Json = {"role": "assistant", "content": text} if chat else {"response": text}
    if thinking:
        fields["thinking"] = thinking
    if calls := list(calls):
        fields["tool_calls"] = calls
    said = {"message": fields} if chat else fields
    return {"model": model, "created_at": now(), **said, "done": bool(more), **more}


def loaded_object(model: str, chat: bool) -> Json:
    """The answer to a request that asks for no text, only that the model is loaded."""
    return answer_object(model, chat, "", done_reason="load")


class CallCollector:
    """Complete calls of an answer: Ollama's clients get a call's arguments as one object.

    A call whose arguments are no object, because a limit cut them, becomes text, so that no client
    runs it without them and nothing is lost.
    """

    def __init__(self, call_id: Callable[[], str]):
        self.call_id = call_id
        self.given = 0
        self._name: str | None = None
        self._arguments = ""
        self._text = ""

    def text(self) -> str:
        """The text of calls that could not be given as such, once."""
        text = self._text
        self._text = ""
        return text

    def take(self, parts: Iterable[AnswerPart]) -> list[Json]:
        """The calls that these parts complete."""
        complete = list[Json]()
        for kind, text, _ in parts:
            if kind == "arguments":
                self._arguments += text
                continue
            complete += self.finish()
            if kind == "call":
                self._name = text
        return complete

    def finish(self) -> list[Json]:
        """The open call, if its arguments are an object; nothing follows them."""
        name = self._name
        text = self._arguments
        self._name = None
        self._arguments = ""
        if name is None:
            return []
        try:
            arguments = loads(text)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            self._text += f'{{"name": {dumps(name)}, "arguments": {text}'
            return []
        function = {"index": self.given, "name": name, "arguments": arguments}
        self.given += 1
        return [{"id": self.call_id(), "function": function}]
