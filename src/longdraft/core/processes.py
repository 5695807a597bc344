"""Several processes, as `torchrun` starts them, that compute one thing together."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from longdraft.errors import InputError
from longdraft.launch import check_meeting, local_rank, world

# by a keyboard interrupt that `Team.agree` has not told the other processes yet
_interrupted = threading.Event()


@dataclass(frozen=True)
class Team:
    """One of several processes that compute together.

    Every process calls the same methods in the same order; only the first one writes files and
    output.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, parts: int) -> range:
        """The parts of a step that this process computes.

        Raises InputError if they cannot be divided evenly.
        """
        if parts % self.size:
            problem = f"{self.size} processes cannot share {parts} parts of a step"
            raise InputError(f"{problem}: give --accumulate {self.size}")
        return range(self.rank, parts, self.size)

    def part(self, x: Tensor) -> Tensor:
        """The part of x that this process computes.

        x is divided along its first dimension, which the team's size divides.
        """
        return x.chunk(self.size)[self.rank]

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the sum of all processes' tensors."""
        # DistributedDataParallel does not fit: objectives do not call the module's forward
        if self.size > 1:
            with _answered():
                for x in tensors:
                    dist.all_reduce(x)

    def join(self, x: Tensor, dim: int) -> Tensor:
        """All processes' parts side by side; they have one shape."""
        if self.size == 1:
            return x
        x = x.transpose(dim, 0).contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with _answered():
            dist.all_gather(parts, x)
        return torch.cat(parts).transpose(0, dim)

    def any(self, here: bool) -> bool:
        """Whether `here` is true in any process."""
        flag = torch.tensor(float(here))
        self.sum([flag])
        return bool(flag)

    def wait(self) -> None:
        """Return when all processes have called this."""
        if self.size > 1:
            with _answered():
                dist.barrier()

    def agree(self, action: str, *facts: Tensor | int) -> None:
        """Returns if all processes do `action` next, with the same facts.

        Otherwise all of them raise InputError. All raise KeyboardInterrupt if one was interrupted
        (see `share_interrupts`), so that they stop at one step.
        """
        if self.size == 1:
            return
        digest = crc32(action.encode())
        for fact in facts:
            digest = crc32(
                fact.cpu().numpy().tobytes() if isinstance(fact, Tensor) else str(fact).encode(),
                digest,
            )
        reports = self.join(torch.tensor([[int(_interrupted.is_set()), digest]]), 0).tolist()
        if any(interrupted for interrupted, _ in reports):
            _interrupted.clear()
            raise KeyboardInterrupt
        if len({digest for _, digest in reports}) > 1:
            raise InputError(
                f"the {self.size} processes disagree on what to compute next ({action}): "
                "start them with the same arguments, files and versions, on processors of one kind"
            )


ALONE = Team()


def joined(seconds: float | None = None) -> Team:
    """The place of this process among those that `torchrun` started; ALONE otherwise.

    seconds: how long to wait for others, in every exchange (default: torch's). Raises InputError.
    """
    _, size = world()
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        check_meeting()
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _answered():
            dist.init_process_group(
                kinds, timeout=None if seconds is None else timedelta(seconds=seconds)
            )
        # a process whose threads still run at its end is aborted
        atexit.register(dist.destroy_process_group)
    return Team(dist.get_rank(), size)


def share_interrupts() -> None:
    """Let keyboard interrupts be raised by the next `Team.agree`, in all processes at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: _interrupted.set())


@contextmanager
def _answered() -> Generator[None]:
    """Turns torch's errors of a process that has ended or does not answer into one line."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            "another process has ended, or has not answered in time: its own error says why"
            f" ({next(iter(str(error).splitlines()), '')[:120]})"
        ) from error
