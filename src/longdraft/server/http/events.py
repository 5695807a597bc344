"""Answers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from longdraft.server.http.pieces import Writer, at_once

DONE = format_sse_event(data_str="[DONE]")


def sse(content: dict[str, Any], kind: str | None = None, write: Writer = at_once) -> bytes:
    """An object as one event.

    kind: the event's name, if it has one.
    """
    return format_sse_event(data_str=write(content), event=kind)


class Closable(Protocol):
    """Work that ends when nobody reads its results."""

    def close(self) -> None: ...


class Ends:
    """A streamed response with which the request ends.

    The request ends however the response ends, and even if the response never begins.
    """

    answer: Closable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)  # type: ignore[misc]
        finally:
            self.answer.close()


class EventStream(Ends, EventSourceResponse):
    """An answer as server-sent events."""

    def __init__(self, answer: Closable, events: AsyncIterator[bytes]):
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.answer = answer
