"""Several processes, as started by `torchrun`, that share a run: the parts of every step, or a target's layers too."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from longdraft.errors import InputError
from longdraft.models.lm import LM, fingerprint


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
            what = f"{self.size} processes cannot share {parts} parts of a step"
            raise InputError(f"{what}: give --accumulate {self.size}")
        return range(self.rank, parts, self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the sum of all processes' tensors."""
        # DistributedDataParallel does not fit: objectives do not call the module's forward
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
        atexit.register(dist.destroy_process_group)  # a process whose threads still run at its end is aborted
    return Team(dist.get_rank(), size)


def spread(lm: LM, team: Team) -> None:
    """Divide the layers of a target, loaded on the CPU, among the team's devices; embeddings, norm and head stay whole.

    Afterwards all processes must run the target equally often and in the same order. Raises InputError for one process.
    """
    if team.size == 1:
        raise InputError("--spread divides the target among processes, but there is one: start several with torchrun")
    lm.known, lm.backend = fingerprint(lm), lm.eager  # afterwards no process can read whole weights
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (team.size,))
    body = lm.hf.get_decoder()
    inner = {p for layer in body.layers for p in layer.parameters()}
    outer = set(body.parameters()) - inner
    for layer in body.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(body, mesh=mesh, ignored_params=outer)
    rotations = [m for m in body.children() if not list(m.parameters())]  # their buffers are needed with the states
    for module in (body.get_input_embeddings(), body.norm, lm.hf.get_output_embeddings(), *rotations):
        module.to(device)
