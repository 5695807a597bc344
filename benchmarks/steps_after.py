"""How many decoding steps a request still gets after the server has seen that its client left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from longdraft.server.uvicorn_server import Server


class StepsAfter:
    """Counts for every request that was given up, from then on until its row was free.

    most: the largest count so far. ended: how many such requests there were. open: those whose rows
    are not free yet.
    """

    def __init__(self) -> None:
        self.most = 0
        self.ended = 0
        self.step = 0
        self.open: dict[int, int] = {}  # the step at which each was given up

    @contextmanager
    def watching(self, server: Server) -> Iterator[StepsAfter]:
        """Watch a server that runs in this process."""
        session = server.engine.session
        cancel = session.cancel
        last = session._last
        decode = session._decode_step

        def noted(id: int) -> bool:
            self.open.setdefault(id, self.step)
            found = cancel(id)
            if not found:  # it had ended by itself
                self.open.pop(id, None)
            return found

        def ended(event: Any) -> None:
            begun = self.open.pop(event.id, None)
            if begun is not None:
                self.most, self.ended = max(self.most, self.step - begun), self.ended + 1
            last(event)

        def counted() -> None:
            self.step += 1
            decode()

        # type: ignore[method-assign]
        session.cancel = noted
        session._last = ended
        session._decode_step = counted
        try:
            yield self
        finally:
            del session.cancel, session._last, session._decode_step
