"""Computes independent parts in several threads, such as those of loading a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
# More would wait for memory, and each needs some of its own.
MOST = 4


def in_threads(compute: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results for these items, in their order, without gradients.

    There are as many threads as torch has, up to MOST, and each computes with one: beside another
    busy process, threads that share each operation wait for each other at its end.
    """
    count = torch.get_num_threads()
    if min(count, len(items)) < 2:
        yield from map(torch.no_grad()(compute), items)
        return
    first = partial(torch.set_num_threads, 1)
    try:
        with ThreadPoolExecutor(min(count, MOST), initializer=first) as pool:
            yield from pool.map(torch.no_grad()(compute), items)
    finally:
        torch.set_num_threads(count)  # of threads that will be started
