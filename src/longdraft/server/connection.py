"""A connection that no client can hold open for nothing: neither by sending slowly, nor by not reading."""

from __future__ import annotations

import socket
from asyncio import Transport
from time import monotonic

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Waits for its client for a bounded time: until a request is whole, and until what was sent has been read.

    Where there are as many connections as allowed, a new one takes the place of the one whose client has owed
    something for the longest time, so that idle clients keep nobody out.
    """

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Without this a small write waits until the client has confirmed the one before: 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since = monotonic()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [c for c in self.connections if c is not self and isinstance(c, Connection) and c.owed]
            if others:
                oldest = min(others, key=lambda c: c.since)
                self.connections.discard(oldest)
                oldest.transport.abort()

    @property
    def owed(self) -> bool:
        """Whether it is the client's turn."""
        running = self.cycle is not None and not self.cycle.response_complete
        sending = not running or (self.cycle.more_body and not self.flow.read_paused)
        return sending or self.flow.write_paused

    def close_if_stuck(self, most_s: float) -> None:
        """Close it if the client's turn has lasted longer. To be called about every second."""
        now = monotonic()
        if not self.owed:
            self.since = now
        elif now - self.since > most_s:
            self.transport.abort()  # `close` would wait until everything is sent

    def on_response_complete(self) -> None:
        self.since = monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:  # its request turned out to be malformed after its headers: nobody reads its answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def resume_writing(self) -> None:
        self.since = monotonic()
        super().resume_writing()
