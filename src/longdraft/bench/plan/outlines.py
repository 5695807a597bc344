"""Facts about the model that a plan is for, and about the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longdraft.backends import cuda
from longdraft.backends.native.layers import computes
from longdraft.costs.counts import ModelCounts, counted, counts_of
from longdraft.costs.machines import machine_of
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM

CPU = "CPU"  # in the table of machines


@dataclass(frozen=True)
class Target:
    """A model, what its passes count, and what they cost on one machine.

    lm: may be on the device "meta". machine: its name, for readers. measured: whether the costs
    were measured there. gpu: whether the machine is a GPU. chains: whether it drafts a chain of
    tokens in one native call.
    """

    lm: LM
    counts: ModelCounts
    costs: PassCosts
    machine: str
    measured: bool
    gpu: bool
    chains: bool


def target_on(lm: LM, device: str) -> Target:
    """The model on a machine of the table `longdraft.costs.machines`. Raises InputError."""
    machine = machine_of(device)
    gpu = machine.name != CPU
    a = lm.architecture
    counts = counts_of(lm)
    native = not gpu and computes(lm.hf, a.windows)
    one_call = native
    if gpu:
        one_call = cuda.CudaBackend.computes(a.features) and cuda.has_even_heads(a)
    counts = replace(counts, one_call=one_call, device="cuda" if gpu else "cpu")
    return Target(
        lm, counts, counted(counts, machine), machine.name, False, gpu, native and not a.scans
    )


def target_here(lm: LM, costs: PassCosts, measured: bool) -> Target:
    """A loaded model on this machine, with costs that are known of it."""
    gpu = lm.device.type == "cuda"
    native = lm.backend.name == "native"
    return Target(
        lm,
        counts_of(lm),
        costs,
        "this machine",
        measured,
        gpu,
        native and not lm.architecture.scans,
    )


def quantized(target: Target, kind: str) -> Target:
    """The target with its linear layers in "int8" or "int4", whose weights are read in fewer
    bytes.
    """
    return replace(target, counts=with_fewer_bytes(target, kind))


def with_fewer_bytes(target: Target, kind: str) -> ModelCounts:
    """The counts of a copy of the target in "int8" or "int4"; nothing is copied."""
    weights = target.counts.weights
    saved = round(target.lm.nbytes() * target.lm.saving(kind))
    return replace(target.counts, weights=replace(weights, shared=max(weights.shared - saved, 0)))
