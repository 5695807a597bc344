"""A command that `torchrun` starts in several processes: one of them speaks, and all end alike."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from typing import Any

from longdraft.errors import InputError
from longdraft.launch import size, world

# a model's heads among processes; `train` shares the work in its own way
DIVIDE = (
    "generate",
    "bench",
    "audit",
)
SPOKEN = timedelta(seconds=10)  # how long a process waits for the one that reports an error


def count() -> int:
    """How many processes torchrun has started; 1 without it. Raises InputError."""
    return size()


def check(command: str) -> None:
    """Raises InputError for a command that cannot run in several processes."""
    if count() > 1 and command not in (*DIVIDE, "train"):
        raise InputError(
            f"{command} runs in one process: start it without torchrun "
            f"({', '.join(DIVIDE)} and train run in several)"
        )


def check_alone(command: str) -> None:
    """Raises InputError in several processes."""
    if count() > 1:
        raise InputError(f"{command} runs in one process: start it without torchrun")


@contextmanager
def as_one() -> Iterator[None]:
    """Only the first process's output is shown. All must come to the end of the block, or raise an
    error.
    """
    rank, size = world()
    if size == 1:
        yield
    elif rank == 0:
        yield
        _end()
    else:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
            _end()


def _end() -> None:
    if _joined():
        from longdraft.core.processes import joined

        joined().agree("the end")


def _joined() -> bool:
    """Whether this process computes together with others."""
    if "longdraft.core.processes" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_initialized()


def leave(status: int) -> int:
    """The status; a process that computes together with others ends here with it.

    A model that is divided for training keeps torch's group and its threads alive, and a thread
    that drops a tensor while the interpreter is being finalized aborts the process. So everything
    but the finalization is done.
    """
    if _joined():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        atexit._run_exitfuncs()
        os._exit(status)
    return status


@contextmanager
def reporting() -> Iterator[bool]:
    """Whether this process reports the error that it has met: one of them does so in the block. The
    others leave the block after it, because torchrun ends all processes once one has ended.
    """
    store = _store()
    mine = store is None or store.add("longdraft/failed", 1) == 1
    try:
        yield mine
    finally:
        with suppress(Exception):  # nothing more can be done for processes that are gone
            if store is not None and mine:
                store.set("longdraft/said", "1")
            elif store is not None:
                store.wait(["longdraft/said"], SPOKEN)


def _store() -> Any:
    """The store that the processes of torchrun share; None if this one is alone, or cannot reach
    the others.
    """
    with suppress(Exception):
        if count() > 1:
            from torch.distributed.rendezvous import rendezvous

            return next(rendezvous("env://"))[0]
    return None
