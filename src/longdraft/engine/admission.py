"""The order in which a session reads the prompts of its waiting requests."""

from __future__ import annotations

from collections import deque

from longdraft.engine.requests import Request
from longdraft.engine.row_pool import EnteringPrompt, RowPool
from longdraft.engine.session_drafters import SessionDrafters

OVERTAKES = 4  # times the length of a short prompt must fit into the unread part of a long one
LOOKED_UP = 8  # of the queue: to look up a prompt of 30,000 tokens takes about a millisecond


class Admission:
    """The waiting requests, and the choice of the prompt that is read next.

    Prompts are read one at a time, in order of submission, with one exception: a short prompt may
    overtake a long one that is being read, which is paused meanwhile. The short one is the first in
    the queue of whose prompt at most 1/OVERTAKES of the tokens that are left of the long one are to
    be read, if more than `chunk` of these are left. Tokens in the prefix cache are not to be read:
    they are looked up for the first LOOKED_UP requests in the queue.
    It does not overtake if it does not fit beside the others, and no later one does so in its
    place.

    At most one prompt is paused at a time. Before another one may overtake it, at least as many of
    its tokens are read as of the latest overtaking prompt, and at least `chunk`. While N tokens of
    a prompt are read, fewer than N tokens of other prompts are therefore read before them.

    total: how many slots the requests in rows may need together.
    """

    def __init__(self, total: int, chunk: int):
        self.total = total
        self.chunk = chunk
        self.waiting = deque[Request]()

    def take(self, id: int) -> Request | None:
        """Remove a request from the queue. Returns it, or None if it does not wait there."""
        request = next((r for r in self.waiting if r.id == id), None)
        if request is not None:
            self.waiting.remove(request)
        return request

    def next(self, rows: RowPool, drafters: SessionDrafters) -> Request | None:
        """The request whose prompt is to be read next.

        It is the one being read, or one that leaves the queue. None: there is no room for one.
        """
        reading = rows.reading
        request = self._first() if reading is None else self._overtaking(reading, rows)
        if request is None or not self._fits(request, rows, drafters):
            return rows.entering
        self.waiting.remove(request)
        if reading is not None:
            reading.held_until = reading.position + max(rows.to_read(request), self.chunk)
        return request

    def _first(self) -> Request | None:
        return self.waiting[0] if self.waiting else None

    def _overtaking(self, reading: EnteringPrompt, rows: RowPool) -> Request | None:
        """The first waiting request that is short enough to overtake this prompt."""
        if rows.paused is not None or reading.position < reading.held_until:
            return None
        left = reading.left
        if left <= self.chunk:
            return None
        for place, request in enumerate(self.waiting):
            if OVERTAKES * len(request.prompt) <= left:
                return request
            if place < LOOKED_UP and OVERTAKES * rows.to_read(request) <= left:
                return request
        return None

    def _fits(self, request: Request, rows: RowPool, drafters: SessionDrafters) -> bool:
        has_room = rows.free > 0 and rows.needed + request.need <= self.total
        return has_room and drafters.may_enter(request, rows)
