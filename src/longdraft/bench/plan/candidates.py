"""The methods that a plan compares, each built without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longdraft import methods
from longdraft.bench.plan.glide import GlideOutline
from longdraft.bench.plan.outlines import Target, with_fewer_bytes
from longdraft.costs.counts import ModelCounts
from longdraft.drafters.kinds import KINDS
from longdraft.errors import InputError
from longdraft.methods import METHODS
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.method import ANY
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM
from longdraft.models.outline import outline

SMALL = ("lm", "budget")  # kinds of drafter weights that are whole models
ODD = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


# a plan is for methods that draft by themselves
UNPLANNED = ("plain", "auto", "fill")


@dataclass(frozen=True)
class Candidate:
    """A method whose drafter has sizes but no weights.

    copy: counts of what drafts in the target's place. lacking: the kind of drafter weights that are
    not there.
    """

    spec: MethodSpec
    drafter: Any
    copy: ModelCounts
    lacking: str | None


def candidates(
    target: Target, specs: Sequence[MethodSpec], small: LM | None, name: str = ""
) -> tuple[list[Candidate], list[str]]:
    """One per method, and why others were left out. specs: none for all methods, of which those are
    left out that cannot run here; of methods that are named, InputError says so. small: the model
    of `--drafter`. name: the target's, beside which drafters are searched.
    """
    found = []
    left_out = []
    for spec in specs or [MethodSpec(m, m) for m in METHODS if m not in UNPLANNED]:
        try:
            found.append(_candidate(target, spec, small, name))
        except InputError as error:
            if specs:
                raise
            left_out.append(f"{spec.label} is left out: {error}")
    return found, left_out


def _candidate(target: Target, spec: MethodSpec, small: LM | None, name: str) -> Candidate:
    method = methods.find(spec.name)
    options = dict(spec.options)
    if method.needs == ANY:
        raise InputError(f"{spec.name} drafts by other methods: name those")
    copy = target.counts
    if (kind := options.get("draft_weights", "same")) != "same":
        if target.gpu:
            raise InputError(
                "kernels read a quantized copy on CPUs only, so it is not faster on a GPU"
            )
        copy = with_fewer_bytes(target, kind)
        options["draft_weights"] = "same"
    needs = method.needs
    own = None
    if needs in SMALL:
        own = small or _beside(needs, name, target.lm)
    there = needs is None or own is not None or _available(needs, name)
    return Candidate(
        spec, _drafter(target.lm, spec.name, needs, own, options), copy, None if there else needs
    )


def _beside(kind: str, name: str, lm: LM) -> LM | None:
    """The small model that lies beside the target."""
    folder = DrafterWeights(model=name).beside(kind)
    return None if folder is None else outline(str(folder), str(lm.dtype).removeprefix("torch."))


def _available(kind: str, name: str) -> bool:
    try:
        return DrafterWeights(model=name).available(kind)
    except InputError:
        return False


def _drafter(lm: LM, name: str, needs: str | None, own: LM | None, options: dict[str, Any]) -> Any:
    """A drafter with random weights on the device "meta". Raises InputError where an architecture
    has none.
    """
    if needs == "glide":
        return GlideOutline(lm, options)
    try:
        with torch.device("meta"):
            weights = None if needs is None else own or KINDS[needs].random(lm, 0)
            return methods.build(name, lm, weights, any_target=False, **options)
    except InputError:
        raise
    except ODD as error:
        kind = type(error).__name__
        raise InputError(
            f"its drafter cannot be built for {lm.config.model_type} ({kind})"
        ) from None
