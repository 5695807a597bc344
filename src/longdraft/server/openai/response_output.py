"""An answer as items of the Responses API, and their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from longdraft.server.calls.answer_reader import AnswerPart
from longdraft.server.openai.items import FunctionTool

Json = dict[str, Any]
Emit = Callable[..., bytes]
# of parts: the item's type, the first letters of its id, its part's type, and its events' name
KINDS = {
    "content": ("message", "msg", "output_text", "output_text"),
    "reasoning": ("reasoning", "rs", "reasoning_text", "reasoning_text"),
    "arguments": ("function_call", "fc", "", "function_call_arguments"),
}


class ResponseOutput:
    """The items of an answer, in the order in which the model wrote them.

    All but the last are complete. emit: writes an event. tools: by the names that the model writes.
    """

    def __init__(self, emit: Emit, call_id: Callable[[], str], tools: Mapping[str, FunctionTool]):
        self.emit = emit
        self.call_id = call_id
        self.tools = tools
        self.items: list[Json] = []
        # of the open item
        self._kind = ""
        self._text = ""

    @property
    def _place(self) -> Json:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if self._kind == "arguments" else place | {"content_index": 0}

    def take(self, parts: Iterable[AnswerPart]) -> Iterator[bytes]:
        """The events of these parts."""
        for kind, text, _ in parts:
            if kind == "call" or kind != self._kind:
                yield from self.close("completed")
                yield from self._open("arguments" if kind == "call" else kind, text)
            if kind != "call":
                self._text += text
                more = {"logprobs": []} if kind == "content" else {}
                yield self.emit(
                    f"response.{KINDS[kind][3]}.delta", **self._place, delta=text, **more
                )

    def _open(self, kind: str, name: str = "") -> Iterator[bytes]:
        type_, letters, part, _ = KINDS[kind]
        item: Json = {"id": f"{letters}_{uuid4().hex}", "type": type_, "status": "in_progress"}
        if kind == "arguments":
            item |= {"call_id": self.call_id(), **self._named(name), "arguments": ""}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        else:
            item |= {"role": "assistant", "content": []}
        self.items.append(item)
        self._kind = kind
        self._text = ""
        yield self.emit(
            "response.output_item.added", output_index=len(self.items) - 1, item=dict(item)
        )
        if part:
            yield self.emit("response.content_part.added", **self._place, part=self._part())

    def _named(self, name: str) -> Json:
        """The name of a function as the request has it, with its group's."""
        tool = self.tools.get(name)
        if tool is None or tool.namespace is None:
            return {"name": name}
        return {"name": tool.name, "namespace": tool.namespace}

    def _part(self) -> Json:
        part = {"type": KINDS[self._kind][2], "text": self._text}
        return part | ({"annotations": [], "logprobs": []} if self._kind == "content" else {})

    def close(self, status: str) -> Iterator[bytes]:
        """The events of the open item's end."""
        if not self._kind:
            return
        item = self.items[-1]
        name = f"response.{KINDS[self._kind][3]}.done"
        place = self._place
        if self._kind == "arguments":
            item["arguments"] = self._text
            yield self.emit(name, **place, name=item["name"], arguments=self._text)
        else:
            item["content"] = [self._part()]
            more = {"logprobs": []} if self._kind == "content" else {}
            yield self.emit(name, **place, text=self._text, **more)
            yield self.emit("response.content_part.done", **place, part=self._part())
        item["status"] = status
        yield self.emit("response.output_item.done", output_index=len(self.items) - 1, item=item)
        self._kind = ""

    def finish(self, status: str) -> Iterator[bytes]:
        """The last events.

        An answer without any text is an empty message.
        """
        if not self.items:
            yield from self._open("content")
        yield from self.close(status)
