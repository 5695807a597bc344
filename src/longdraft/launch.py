"""What `torchrun` tells each process that it starts. Nothing here imports torch."""

from __future__ import annotations

import os

from longdraft.errors import InputError

RIGHT = "start several processes with torchrun, or unset WORLD_SIZE to run in one"


def world() -> tuple[int, int]:
    """(this process's rank, number of processes); (0, 1) without torchrun. Raises InputError for variables that
    torchrun would not set.
    """
    size = _number("WORLD_SIZE", 1, 1)
    if size == 1:
        return 0, 1
    rank = _number("RANK", None, 0)
    if rank >= size:
        raise InputError(f"RANK is {rank}, and WORLD_SIZE is {size}: {RIGHT}")
    _number("MASTER_PORT", None, 0)
    if not os.environ.get("MASTER_ADDR"):
        raise InputError(f"WORLD_SIZE is {size}, and MASTER_ADDR is not set: {RIGHT}")
    return rank, size


def local_rank() -> int:
    """This process's number on its machine. Raises InputError."""
    return _number("LOCAL_RANK", 0, 0)


def _number(name: str, default: int | None, least: int) -> int:
    text = os.environ.get(name) or ("" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise InputError(f"the environment variable {name} is {text[:40]!r}, not a number of {least} or more: {RIGHT}")
    return int(text)
