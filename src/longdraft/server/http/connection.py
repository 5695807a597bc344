"""A connection that a client cannot hold open by sending slowly or by not reading."""

from __future__ import annotations

import socket
import sys
from asyncio import Transport
from contextlib import suppress
from time import monotonic

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from longdraft.server.http.problems import Problem

MOST_IGNORED = 1 << 20  # bytes that a client may still send after its request was refused


class Connection(H11Protocol):
    """Waits a bounded time for its client: to send a whole request, and to read what was sent.

    If there are as many connections as allowed, a new one takes the place of the one whose client
    has owed something for the longest time, so that idle clients keep nobody out.
    """

    ignored: int | None = None  # bytes, after a refusal that ends the connection

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Without this a small write waits until the client has confirmed the one before: 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since = monotonic()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [
                c
                for c in self.connections
                if c is not self and isinstance(c, Connection) and c.owed
            ]
            if others:
                oldest = min(others, key=lambda c: c.since)
                self.connections.discard(oldest)
                oldest.transport.abort()

    @property
    def owed(self) -> bool:
        """Tells whether the server waits for the client."""
        running = self.cycle is not None and not self.cycle.response_complete
        sending = not running or (self.cycle.more_body and not self.flow.read_paused)
        return sending or self.flow.write_paused

    def close_if_stuck(self, most_s: float) -> None:
        """Close the connection if the client's turn has lasted longer.

        To be called about every second.
        """
        now = monotonic()
        if not self.owed:
            self.since = now
        elif now - self.since > most_s:
            self.transport.abort()  # `close` would wait until everything is sent

    def on_response_complete(self) -> None:
        self.since = monotonic()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self.ignored is None:
            super().data_received(data)
        else:
            self.ignored += len(data)
            if self.ignored > MOST_IGNORED:
                self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP.

        If the connection were closed while its client sends, it would be reset, and the answer
        lost.
        """
        if self.cycle is not None:
            # Its request turned out to be malformed after its headers: nobody reads its answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        problem = _malformed(sys.exc_info()[1])
        if refused := getattr(self.config.app, "refused", None):
            refused(self.client[0] if self.client else "", problem.status, reason="malformed_http")
        if self.conn.our_state is not h11.SEND_RESPONSE and self.conn.our_state is not h11.IDLE:
            self.transport.close()  # in the middle of another answer
            return
        response = problem.response()
        phrase = STATUS_PHRASES[problem.status]
        self.ignored = 0
        for event in (
            h11.Response(status_code=problem.status, headers=response.raw_headers, reason=phrase),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        with suppress(OSError):  # it has been read and the connection reset meanwhile
            self.transport.write_eof()

    def resume_writing(self) -> None:
        self.since = monotonic()
        super().resume_writing()


def _malformed(error: BaseException | None) -> Problem:
    """The problem that h11 found; it tells headers that are too large from other errors."""
    if getattr(error, "error_status_hint", 400) == 431:
        return Problem(431, "the headers are too large: send fewer", close=True)
    return Problem(400, "the request is not valid HTTP", close=True)
