"""Everything a plan is made from, put together: the model's outline, the machine's costs, methods
and acceptance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from longdraft.backends.quantize import BITS
from longdraft.bench.plan.acceptance import (
    Acceptance,
    from_records,
    from_statement,
    of_model,
    read_folder,
    usual,
)
from longdraft.bench.plan.candidates import SMALL, Candidate, candidates
from longdraft.bench.plan.outlines import CPU, Target, quantized, target_here, target_on
from longdraft.bench.plan.prediction import Prediction, ranked
from longdraft.bench.selection import parse
from longdraft.core import UNBOUNDED
from longdraft.costs.counts import counted
from longdraft.costs.machines import machine_of
from longdraft.errors import InputError
from longdraft.methods import find
from longdraft.methods.spec import MethodSpec
from longdraft.models import fetch
from longdraft.models.lm import LM
from longdraft.models.loading import ACTIVATIONS, check_kv, load_lm
from longdraft.models.outline import outline
from longdraft.tuning.known import known_costs


@dataclass(frozen=True)
class LoadOptions:
    """How the target would be loaded: as for `longdraft.models.loading.load`."""

    dtype: str = "bfloat16"
    rope: str | None = None
    weights: str | None = None
    kv: str | None = None
    activations: str | None = None


class Planner:
    """Predictions for one model on one machine. Raises InputError when made for whatever a user can
    correct.

    device: of `costs.machines`; "": this machine. methods: as for `bench`; "": all that could run.
    stated: tokens of a step by method. records: measured acceptance. drafter: a small model. notes:
    what a reader should know.
    """

    def __init__(
        self,
        model: str,
        options: LoadOptions,
        device: str = "",
        *,
        methods: str = "",
        stated: dict[str, float] | None = None,
        records: Path | None = None,
        drafter: str = "",
    ):
        self.notes: list[str] = []
        specs = _specs(methods)
        self.target = _target(model, options, device)
        small = _small(drafter, options) if drafter else None
        self.candidates, self.notes = candidates(self.target, specs, small, model)
        if self.target.lm.note and self.target.lm.device.type == "meta":
            self.notes.insert(0, self.target.lm.note)
        self.stated = dict(stated or {})
        for label in self.stated.keys() - {c.spec.label for c in self.candidates}:
            raise InputError(
                f"--acceptance names {label[:40]}, which is not in this plan: name it as "
                "--methods does"
            )
        if drafter and not any(find(c.spec.name).needs in SMALL for c in self.candidates):
            raise InputError(
                "--drafter is a small model, and no method of this plan uses one: leave it out"
            )
        for c in self.candidates:  # refuses what no step can have before any table is printed
            if c.spec.label in self.stated:
                from_statement(c.spec.label, self.stated[c.spec.label], _full(c))
        self.records = of_model(read_folder(records), model) if records is not None else []
        if records is not None and not self.records:
            self.notes.append(
                f"{records} has no records of {model}, so acceptance is the usual one"
            )

    def ranking(self, rows: int, context: int) -> list[Prediction]:
        """Every method at this context, the highest speedup first."""
        return ranked(self.target, self.candidates, rows, context, self.acceptance)

    def acceptance(self, candidate: Candidate, context: int) -> Acceptance:
        """Stated, else of records, else usual."""
        spec = candidate.spec
        if spec.label in self.stated:
            return from_statement(spec.label, self.stated[spec.label], _full(candidate))
        drafter: Any = candidate.drafter

        def of_depth(depth: int) -> list[int]:
            return drafter.price().breadth(min(depth, drafter.max_depth), UNBOUNDED)

        return from_records(self.records, spec, context, of_depth) or usual(spec.name)


def _full(candidate: Candidate) -> list[int]:
    """Nodes on each level of a draft of full size."""
    drafter = candidate.drafter
    return drafter.price().breadth(drafter.max_depth, UNBOUNDED)


def _specs(methods: str) -> list[MethodSpec]:
    if not methods:
        return []
    entries: list[Any] = parse(methods, [])
    other = next((e.label for e in entries if not isinstance(e, MethodSpec)), None)
    if other is not None:
        raise InputError(
            f"{other} is a baseline of bench, which plan does not predict: name methods of "
            "longdraft"
        )
    return [e for e in entries if e.name != "plain"]


def _small(name: str, options: LoadOptions) -> LM:
    """The config alone; of a GGUF file the weights as well, because how these are packed differs by
    layer.
    """
    return (
        load_lm(name, options.dtype, "cpu") if fetch.is_file(name) else outline(name, options.dtype)
    )


def _target(model: str, options: LoadOptions, device: str) -> Target:
    """On this machine, a model whose weights are here is loaded, so that costs are those that are
    known of it.
    """
    if not device and _is_here(model):
        lm = load_lm(model, **asdict(options))
        costs = known_costs(lm)
        return target_here(lm, costs, costs != counted(lm))
    device = device or (torch.cuda.get_device_name() if torch.cuda.is_available() else CPU)
    kv = _kv(options.kv, device)
    if fetch.is_file(model):
        lm = load_lm(model, options.dtype, "cpu", options.rope, kv=kv)
    else:
        packs_experts = machine_of(device).name == CPU
        lm = outline(model, options.dtype, options.rope, kv, packs_experts)
    if options.activations not in (None, *ACTIVATIONS):
        raise InputError(
            f"activations is {options.activations[:40]!r}: choose {' or '.join(ACTIVATIONS)}"
        )
    if options.weights is not None and options.weights not in BITS:
        raise InputError(
            f"weights is {options.weights[:40]!r}: choose {' or '.join(BITS)}, or leave it out"
        )
    target = target_on(lm, device)
    return target if options.weights is None else quantized(target, options.weights)


def _kv(kv: str | None, device: str) -> str | None:
    """The kv to load with, since no GPU has caches in 8 bits."""
    check_kv(kv)
    machine = machine_of(device).name
    if machine == CPU:
        return kv
    if kv not in (None, "full"):
        raise InputError(
            f"--kv {kv[:40]} is for caches of CPUs, and {machine} is a GPU: leave it out"
        )
    return "full"


def _is_here(model: str) -> bool:
    """Whether a name stands for weights on this disk."""
    return (
        model == "bundled"
        or fetch.is_file(model)
        or any(Path(model).expanduser().glob("*.safetensors"))
    )
