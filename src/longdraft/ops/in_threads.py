"""Computes independent parts in several threads, such as those of loading a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
# More would wait for memory, and each needs some of its own.
MOST = 4
# Results that wait for the caller hold memory, so no more items than this are given out before it
# takes the first of them.
AHEAD = 4 * MOST


def in_threads(compute: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results for these items, in their order, without gradients.

    There are as many threads as torch has, up to MOST, and each computes with one: beside another
    busy process, threads that share each operation wait for each other at its end. After an error
    no more than AHEAD items behind the one that failed have been begun.
    """
    count = torch.get_num_threads()
    if min(count, len(items)) < 2:
        yield from map(torch.no_grad()(compute), items)
        return
    first = partial(torch.set_num_threads, 1)
    try:
        with ThreadPoolExecutor(min(count, MOST), initializer=first) as pool:
            yield from _in_order(pool, torch.no_grad()(compute), items)
    finally:
        torch.set_num_threads(count)  # of threads that will be started


def _in_order(pool: Executor, compute: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Like Executor.map, which gives out all items at once."""
    waiting = deque[Future[R]]()
    try:
        for item in items:
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
            waiting.append(pool.submit(compute, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
