"""Several processes that share a run, as `torchrun` starts them: each takes some parts of every step."""

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
    """After every step all processes hold the same weights; the first one alone writes and is heard."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, parts: int) -> range:
        """The parts of a step that are this process's. Raises InputError where they cannot be shared out evenly."""
        if parts % self.size:
            raise InputError(
                f"{self.size} processes cannot share {parts} parts of a step: give --accumulate {self.size}"
            )
        return range(self.rank, parts, self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Each becomes, in place, the sum of all processes' own."""
        if self.size > 1:
            for x in tensors:
                dist.all_reduce(x)

    def any(self, mine: bool) -> bool:
        """Whether it is so for any process."""
        flag = torch.tensor(float(mine))
        self.sum([flag])
        return bool(flag)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


def joined() -> Team:
    """This process's place among those that `torchrun` started; alone otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Team()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return Team(dist.get_rank(), size)
