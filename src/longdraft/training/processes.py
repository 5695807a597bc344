"""Several processes that share a run, as started by `torchrun`: each computes some parts of every step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from longdraft.errors import InputError


@dataclass(frozen=True)
class Team:
    """After every step all processes hold the same weights; only the first one writes files and output."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, parts: int) -> range:
        """The parts of a step that this process computes. Raises InputError if they cannot be divided evenly."""
        if parts % self.size:
            raise InputError(
                f"{self.size} processes cannot share {parts} parts of a step: give --accumulate {self.size}"
            )
        return range(self.rank, parts, self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the sum of all processes' tensors.

        DistributedDataParallel does not fit: objectives call methods of the module, not its forward, and a step has
        several backward passes.
        """
        if self.size > 1:
            for x in tensors:
                dist.all_reduce(x)

    def any(self, here: bool) -> bool:
        """Whether `here` is true in any process."""
        flag = torch.tensor(float(here))
        self.sum([flag])
        return bool(flag)

    def wait(self) -> None:
        """Return when all processes have called this."""
        if self.size > 1:
            dist.barrier()


ALONE = Team()


def joined() -> Team:
    """This process's place among those that `torchrun` started; ALONE otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return Team(dist.get_rank(), size)
