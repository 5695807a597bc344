"""`--queue-seconds` counts the time before a prompt is begun, not the time of its reading."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from longdraft.engine.requests import Event
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.work import Times
from longdraft.server.http.problems import Problem


def next_event(begun: bool, request_s: float = 60.0) -> Event:
    """The first event, which comes after the time for waiting is over."""
    service: Any = SimpleNamespace(times=Times(0.0, request_s))
    streams: Any = [SimpleNamespace(begun=begun)]
    answer = Answer(service, SimpleNamespace(), streams, [])  # type: ignore[arg-type]
    queue = asyncio.Queue[tuple[int, Event]]()

    async def asked() -> Event:
        waiting = asyncio.ensure_future(answer._next(queue, True))
        while begun and request_s and not answer.begun:
            await asyncio.sleep(0)
        if begun and request_s:
            queue.put_nowait((0, Event(1, [5])))
        return (await waiting)[1]

    return asyncio.run(asked())


def test_a_prompt_that_is_read_may_take_longer():
    assert next_event(begun=True).tokens == [5]


def test_a_request_in_the_queue_ends():
    with pytest.raises(Problem, match="did not begin within 0 s"):
        next_event(begun=False)


def test_the_time_of_a_request_still_counts():
    with pytest.raises(Problem, match="did not end within 0 s"):
        next_event(begun=True, request_s=0.0)
