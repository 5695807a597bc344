"""Pins torch's threads to processors.

A thread that is moved or must wait stalls all others at the next barrier.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from longdraft.ops import native

# set by users who place threads themselves
AFFINITY = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
_before: list[int] = []  # the processors that the threads could run on before they were pinned


def pin() -> bool:
    """Pin each of torch's threads to its own processor until `release`; -> whether it was done.

    It is done only if there are as many threads as processors (otherwise the operating system's
    scheduler, which knows what else runs, chooses better), with a native build, on a system with
    affinities, and unless the environment sets them already. Set the number of threads first:
    threads created later share the first one's processor.
    """
    release()
    lib: Any = native.library()
    allowed = _allowed()
    if obstacle():
        return False
    own = torch.tensor(allowed)
    if not lib.longdraft_pin(len(allowed), own.data_ptr()):
        return False  # more processors than an affinity mask can hold
    _before.extend(allowed)
    return True


def obstacle() -> str:
    """The reason why `pin` would not pin; "" if it would."""
    allowed = _allowed()
    threads = torch.get_num_threads()
    if native.library() is None:
        return "without kernels"
    if not allowed:
        return "this system cannot pin"
    if named := [name for name in AFFINITY if name in os.environ]:
        return f"{named[0]} places them"
    if threads == 1 or threads != len(allowed):
        return "only if there are as many threads as processors, and more than one"
    return ""


def _allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def release() -> None:
    """Let all threads, those created meanwhile included, run where they could before."""
    for task in Path("/proc/self/task").iterdir() if _before else ():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(task.name), _before)
    if _before and (lib := native.library()) is not None:
        lib.longdraft_pin(0, None)
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
