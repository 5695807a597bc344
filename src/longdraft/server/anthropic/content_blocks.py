"""An answer as content blocks of Anthropic's API, and their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from longdraft.server.anthropic.conversation import CALL, read_object
from longdraft.server.calls.answer_reader import AnswerPart

Json = dict[str, Any]
Emit = Callable[..., bytes]
# by a part's kind: the type of its delta, and the delta's field
DELTAS = {
    "content": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "arguments": ("input_json_delta", "partial_json"),
}
# Some clients send reasoning back only with a signature. It is not checked.
SIGNATURE = "longdraft"


class ContentBlocks:
    """The blocks of an answer, in the order in which the model wrote them.

    All but the last are complete. emit: writes an event.
    """

    def __init__(self, emit: Emit, call_id: Callable[[], str]):
        self.emit = emit
        self.call_id = call_id
        self.blocks: list[Json] = []
        # of the open block
        self._kind = ""
        self._text = ""

    def take(self, parts: Iterable[AnswerPart]) -> Iterator[bytes]:
        """The events of these parts."""
        for kind, text, _ in parts:
            if kind == "call":
                yield from self._open("arguments", self._call(text))
                continue
            if kind != self._kind:
                yield from self._open(kind, self._empty(kind))
            self._text += text
            type_, field = DELTAS[kind]
            yield self._delta(type=type_, **{field: text})

    def _call(self, name: str) -> Json:
        id = CALL + self.call_id().removeprefix("call_")
        return {"type": "tool_use", "id": id, "name": name, "input": {}}

    def _empty(self, kind: str) -> Json:
        if kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    @property
    def _index(self) -> int:
        return len(self.blocks) - 1

    def _delta(self, **delta: str) -> bytes:
        return self.emit("content_block_delta", index=self._index, delta=delta)

    def _open(self, kind: str, block: Json) -> Iterator[bytes]:
        yield from self._close()
        self.blocks.append(block)
        self._kind = kind
        self._text = ""
        yield self.emit("content_block_start", index=self._index, content_block=dict(block))

    def _close(self) -> Iterator[bytes]:
        """The events of the open block's end."""
        if not self._kind:
            return
        block = self.blocks[-1]
        if self._kind == "arguments":
            block["input"] = read_object(self._text)
        elif self._kind == "reasoning":
            block["thinking"] = self._text
            block["signature"] = SIGNATURE
            yield self._delta(type="signature_delta", signature=SIGNATURE)
        else:
            block["text"] = self._text
        self._kind = ""
        yield self.emit("content_block_stop", index=self._index)

    def finish(self) -> Iterator[bytes]:
        """The last events.

        An answer without any text is an empty text.
        """
        if not self.blocks:
            yield from self._open("content", self._empty("content"))
        yield from self._close()
