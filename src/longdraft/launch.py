"""The variables that `torchrun` sets for each process that it starts.

Nothing here imports torch.
"""

from __future__ import annotations

import os

from longdraft.errors import InputError

RIGHT = "start several processes with torchrun, or unset WORLD_SIZE to run in one"


def size() -> int:
    """The number of processes; 1 without torchrun.

    Raises InputError.
    """
    return _number("WORLD_SIZE", 1, 1)


def world() -> tuple[int, int]:
    """(this process's rank, number of processes); (0, 1) without torchrun.

    Raises InputError for variables that torchrun would not set.
    """
    count = size()
    if count == 1:
        return 0, 1
    rank = _number("RANK", None, 0)
    if rank >= count:
        raise InputError(f"RANK is {rank}, and WORLD_SIZE is {count}: {RIGHT}")
    return rank, count


def check_meeting() -> None:
    """Raises InputError without the place at which several processes meet."""
    _number("MASTER_PORT", None, 0)
    if not os.environ.get("MASTER_ADDR"):
        raise InputError(f"WORLD_SIZE is {size()}, and MASTER_ADDR is not set: {RIGHT}")


def local_rank() -> int:
    """This process's number on its machine.

    Raises InputError.
    """
    return _number("LOCAL_RANK", 0, 0)


def _number(name: str, default: int | None, least: int) -> int:
    text = os.environ.get(name) or ("" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise InputError(
            f"the environment variable {name} is {text[:40]!r}, not a number of {least} or "
            f"more: {RIGHT}"
        )
    return int(text)
