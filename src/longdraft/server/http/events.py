"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from longdraft.server.http.pieces import Writer, at_once

DONE = format_sse_event(data_str="[DONE]")
COMMENT = format_sse_event(comment="keep-alive")
SILENCE_S = 10.0  # proxies and clients give up a silent connection after 30 seconds or more


def sse(content: dict[str, Any], kind: str | None = None, write: Writer = at_once) -> bytes:
    """An object as one event.

    kind: the event's name, if it has one.
    """
    return format_sse_event(data_str=write(content), event=kind)


Sign = Callable[[], bytes]


def comment() -> bytes:
    return COMMENT


async def kept_alive(events: AsyncIterator[bytes], sign: Sign = comment) -> AsyncIterator[bytes]:
    """The events as they come, and a sign whenever none has come for SILENCE_S."""
    pending: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait({pending}, timeout=SILENCE_S)
            if not done:
                yield sign()
                continue
            event = pending.result()
            pending = None
            if event is None:
                return
            yield event
    finally:
        if pending is not None:
            pending.cancel()


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    """The next event; None at the end."""
    return await anext(events, None)


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
    """An answer as server-sent events.

    sign: makes what is sent while the answer is silent, for example while a long prompt is read.
    """

    def __init__(self, answer: Closable, events: AsyncIterator[bytes], sign: Sign = comment):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(kept_alive(events, sign), headers=headers)
        self.answer = answer
