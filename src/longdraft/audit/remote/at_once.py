"""Calls in threads, a given number at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(
    calls: Sequence[Callable[[], T]], width: int
) -> Iterator[tuple[int, T | BaseException]]:
    """The number and the result of each call, as they end; `width` of them run at a time.

    The threads are daemons: an interrupted audit does not wait for a slow server.
    """
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    stopped = threading.Event()
    for i in range(len(calls)):
        todo.put(i)

    def work() -> None:
        while not stopped.is_set() and not todo.empty():
            try:
                i = todo.get_nowait()
            except Empty:  # another thread took the last
                return
            try:
                done.put((i, calls[i]()))
            except BaseException as error:  # the caller raises it
                done.put((i, error))

    for _ in range(min(width, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in calls:
            yield done.get()
    finally:
        stopped.set()
