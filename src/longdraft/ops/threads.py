"""Threads that stay where they are: one that is moved or must wait stalls all the others at the next barrier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from longdraft.ops import native

ASKED = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")  # whoever sets one of them has decided
_before: list[int] = []  # processors that the threads may run on again when they are released


def pin() -> bool:
    """Give each of torch's threads a processor of its own, until `release`; -> whether it was done.

    Only where there are as many threads as processors (a choice among more is the scheduler's, which knows what else
    runs), with a native build, on a system with affinities, and where the environment does not say it already. Set the
    number of threads first: threads that are made later share the first one's processor.
    """
    release()
    lib: Any = native.library()
    threads = torch.get_num_threads()
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if lib is None or not 1 < threads == len(allowed) or any(name in os.environ for name in ASKED):
        return False
    own = torch.tensor(allowed)
    if not lib.longdraft_pin(threads, own.data_ptr()):
        return False  # more processors than the system's set of them holds
    _before.extend(allowed)
    return True


def release() -> None:
    """Let the threads run where they could before, and those that were made meanwhile too."""
    for task in Path("/proc/self/task").iterdir() if _before else ():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(task.name), _before)
    _before.clear()


def are_pinned() -> bool:
    return bool(_before)


@contextmanager
def pinned() -> Iterator[bool]:
    """`pin` and `release` around a block."""
    try:
        yield pin()
    finally:
        release()
