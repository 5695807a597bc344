"""Data-sheet bandwidths and rates of machines, for costs of models that were never measured.

GPUs: memory bandwidth and dense bfloat16 rates of NVIDIA's data sheets (A100 80GB SXM: 2039 GB/s,
312 TFLOPS; H100 SXM: 3350 GB/s, 989 TFLOPS; H200: 4800 GB/s, 989 TFLOPS; HGX B200: 8000 GB/s, 2250
TFLOPS; RTX 4090, Ada architecture white paper: 1008 GB/s, 165.2 TFLOPS with float32 sums); a
multiply-add is two of their operations. Overheads are estimates: about twelve kernels per layer,
2.5 microseconds each in a graph and ten times that from Python. CPU: two cores with AVX-512,
rounded from this project's records of task `steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from longdraft.errors import InputError

# shares of a data sheet's figures that kernels reach, estimated
READING = 0.8
COMPUTING = 0.6


@dataclass(frozen=True)
class Machine:
    """A processor and its memory, as a data sheet describes it, and overheads in seconds.

    bandwidth: bytes/s. rate: multiply-adds/s in bfloat16; attention reaches the share `attending`
    of it. layer, module: fixed cost of a layer in a pass that is one native call or graph, and in
    one that runs a module's Python code.
    call: of each pass. slower: how many times as long a layer that torch computes takes to read its
    weights. The others are those of PassCosts with their names.
    """

    name: str
    bandwidth: float
    rate: float
    attending: float = 0.3
    layer: float = 30e-6
    module: float = 300e-6
    call: float = 100e-6
    row: float = 2e-6
    node: float = 1e-6
    score: float = 1e-12
    choose: float = 1e-11
    draw: float = 1e-12
    step: float = 300e-6
    tree: float = 2e-6
    block: float = 400e-6
    choice: float = 500e-6
    slower: float = 1.0

    @property
    def reads(self) -> float:
        """Bytes per second that kernels reach."""
        return self.bandwidth * READING

    @property
    def multiplies(self) -> float:
        """Multiply-adds per second that linear layers reach."""
        return self.rate * COMPUTING

    @property
    def attends(self) -> float:
        """Multiply-adds per second that attention reaches."""
        return self.rate * self.attending


MACHINES = {
    m.name: m
    for m in (
        Machine("A100", 2.039e12, 156e12),
        Machine("H100", 3.35e12, 494e12),
        Machine("H200", 4.8e12, 494e12),
        Machine("B200", 8.0e12, 1125e12),
        Machine("RTX 4090", 1.008e12, 82.6e12),
        Machine(
            "CPU",
            5e10,
            4e11,
            attending=0.9,
            layer=6e-6,
            row=20e-6,
            node=20e-6,
            score=2e-10,
            choose=5e-9,
            draw=5e-10,
            step=100e-6,
            tree=5e-6,
            block=100e-6,
            slower=4.0,
        ),
    )
}


def machine_of(where: str | torch.device) -> Machine:
    """The machine with this name in any case, or the nearest one to a torch device.

    Raises InputError.
    """
    if isinstance(where, torch.device):
        where = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
        machine = next((m for name, m in MACHINES.items() if name in where), None)
        return machine or MACHINES["A100"]  # a GPU that is not in the table
    if where == "cuda":
        return MACHINES["A100"]
    by_name = {name.lower().replace(" ", ""): m for name, m in MACHINES.items()}
    machine = by_name.get(where.lower().replace(" ", "").replace("-", ""))
    if machine is None:
        raise InputError(f"unknown machine {where[:40]!r}: choose {', '.join(MACHINES)}")
    return machine
