"""An answer as a message of Anthropic's API, whole or as events."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from longdraft.server.anthropic.content_blocks import ContentBlocks, Emit
from longdraft.server.anthropic.error_shape import error_of
from longdraft.server.decode.answer import Answer
from longdraft.server.http.entry import current
from longdraft.server.http.events import sse
from longdraft.server.http.problems import Problem

Json = dict[str, Any]
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageObject:
    """The message of an answer, and its events."""

    def __init__(self, answer: Answer):
        self.answer = answer
        self.head = {
            "id": current().identify("msg_"),
            "type": "message",
            "role": "assistant",
            "model": answer.service.model,
        }

    def _blocks(self, emit: Emit) -> ContentBlocks:
        talk = self.answer.work.talk
        assert talk is not None
        return ContentBlocks(emit, talk.dialect.call_id)

    @property
    def usage(self) -> Json:
        """The tokens so far; `input_tokens` are those that were not in the prefix cache."""
        counted = self.answer.usage
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counted["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted["completion_tokens"],
        }

    def _stop(self, finish: str | None) -> Json:
        """The reason why the answer ended."""
        matched = self.answer.replies[0].matched if finish == "stop" else None
        reason = "stop_sequence" if matched is not None else STOP_REASONS[finish or "stop"]
        return {"stop_reason": reason, "stop_sequence": matched}

    async def whole(self) -> Json:
        blocks = self._blocks(lambda kind, **fields: b"")
        finish = None
        async for _, delta in self.answer.parts():
            finish = delta.finish
            deque(blocks.take(delta.parts), 0)
        deque(blocks.finish(), 0)
        return self.head | {"content": blocks.blocks} | self._stop(finish) | {"usage": self.usage}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events.

        An error after the first of them is an event too, and the last.
        """
        blocks = self._blocks(event)
        finish = None
        begun = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self.usage}
        yield event("message_start", message=self.head | begun)
        yield PING
        try:
            async for _, delta in self.answer.parts():
                finish = delta.finish
                for written in blocks.take(delta.parts):
                    yield written
        except Problem as problem:
            entry = current()
            entry.reason = problem.reason
            yield sse(error_of(problem.status, problem.message, problem.code, entry.id), "error")
            return
        for written in blocks.finish():
            yield written
        yield event("message_delta", delta=self._stop(finish), usage=self.usage)
        yield event("message_stop")


def event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


PING = event("ping")  # the sign of life that Anthropic's clients expect
