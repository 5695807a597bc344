"""Everything a plan is made from, put together: the model's outline, the machine's costs, methods and acceptance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from longdraft.backends.packed_linear import BITS
from longdraft.bench.plan.acceptance import (
    Acceptance,
    from_records,
    from_statement,
    of_model,
    read_folder,
    usual,
)
from longdraft.bench.plan.candidates import SMALL, Candidate, candidates
from longdraft.bench.plan.drafts import breadth
from longdraft.bench.plan.outlines import CPU, Target, quantised, target_on
from longdraft.bench.plan.prediction import Prediction, ranked
from longdraft.bench.selection import parse
from longdraft.core import UNBOUNDED
from longdraft.errors import InputError
from longdraft.methods import find
from longdraft.methods.spec import MethodSpec
from longdraft.models import fetch
from longdraft.models.lm import KV_BITS, LM
from longdraft.models.loading import load_lm
from longdraft.models.outline import outline


class Options(Protocol):
    """How the target would be loaded: `longdraft.cli.option_groups.TargetOptions`."""

    @property
    def dtype(self) -> str: ...
    @property
    def rope(self) -> str | None: ...
    @property
    def weights(self) -> str | None: ...
    @property
    def kv(self) -> str | None: ...


class Planner:
    """Predictions for one model on one machine. Raises InputError when made for whatever a user can correct.

    device: of `costs.machines`; "": this machine. methods: as for `bench`; "": all that could run. stated: tokens of a
    step by method. records: measured acceptance. drafter: a small model. notes: what a reader should know.
    """

    def __init__(
        self,
        model: str,
        options: Options,
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
        small = _lm(drafter, options) if drafter else None
        self.candidates, self.notes = candidates(self.target, specs, small, model)
        self.stated = dict(stated or {})
        for label in self.stated.keys() - {c.spec.label for c in self.candidates}:
            raise InputError(f"--acceptance names {label[:40]}, which is not in this plan: name it as --methods does")
        if drafter and not any(find(c.spec.name).needs in SMALL for c in self.candidates):
            raise InputError("--drafter is a small model, and no method of this plan uses one: leave it out")
        for c in self.candidates:  # refuses what no step can have before any table is printed
            if c.spec.label in self.stated:
                from_statement(c.spec.label, self.stated[c.spec.label], _full(c))
        self.records = of_model(read_folder(records), model) if records is not None else []
        if records is not None and not self.records:
            self.notes.append(f"{records} has no records of {model}, so acceptance is the usual one")

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
            return breadth(drafter, min(depth, drafter.max_depth), UNBOUNDED)

        return from_records(self.records, spec, context, of_depth) or usual(spec.name)


def _full(candidate: Candidate) -> list[int]:
    """Nodes on each level of a draft of full size."""
    return breadth(candidate.drafter, candidate.drafter.max_depth, UNBOUNDED)


def _specs(methods: str) -> list[MethodSpec]:
    if not methods:
        return []
    entries: list[Any] = parse(methods, [])
    other = next((e.label for e in entries if not isinstance(e, MethodSpec)), None)
    if other is not None:
        raise InputError(f"{other} is a baseline of bench, which plan does not predict: name methods of longdraft")
    return [e for e in entries if e.name != "plain"]


def _lm(name: str, options: Options) -> LM:
    """The config alone; of a GGUF file the weights as well, because how these are packed differs by layer."""
    if fetch.is_file(name):
        return load_lm(name, options.dtype, "cpu", options.rope)
    return outline(name, options.dtype, options.rope)


def _target(model: str, options: Options, device: str) -> Target:
    lm = _lm(model, options)
    if options.kv is not None and options.kv not in KV_BITS:
        raise InputError(f"kv is {options.kv[:40]!r}: choose {' or '.join(KV_BITS)}, or leave it out")
    lm.kv, lm.kv_bits = options.kv, KV_BITS.get(options.kv or "", 0)
    here = CPU if not torch.cuda.is_available() else torch.cuda.get_device_name()
    target = target_on(lm, device or here)
    if options.weights is None:
        return target
    if options.weights not in BITS:
        raise InputError(f"weights is {options.weights[:40]!r}: choose {' or '.join(BITS)}, or leave it out")
    return quantised(target, options.weights)
