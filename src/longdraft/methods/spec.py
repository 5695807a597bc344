"""A method as a run uses it: its options as text, its label, and its drafter weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from longdraft import methods
from longdraft.core.options import read
from longdraft.drafters import Drafter
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.prices import adapted
from longdraft.models.lm import LM


@dataclass
class MethodSpec:
    """A method whose options, given as text, are valid.

    label: its name in tables. Raises InputError when made.
    """

    label: str
    name: str
    given: dict[str, str] = field(default_factory=dict)
    weights: DrafterWeights = field(default_factory=DrafterWeights)

    def __post_init__(self) -> None:
        self._read: BaseModel = read(
            self.name, methods.find(self.name).options, self.given, text=True
        )

    @property
    def speculative(self) -> bool:
        return self.name != "plain"

    @property
    def pace(self) -> bool:
        """Whether drafts are adapted to predicted costs.

        Not with `-o pace=off`; `auto` adapts its drafters itself.
        """
        return dict(self._read).get("pace") == "on"

    @property
    def origin(self) -> dict[str, str]:
        """The drafter weights as a record states them."""
        weights = self.weights.origin(methods.find(self.name).needs)
        return {} if weights is None else {"drafter": weights}

    @property
    def options(self) -> dict[str, Any]:
        """Every option of the method with its value, as in JSON."""
        return self._read.model_dump(exclude={"pace"})

    def copies(self, target: LM) -> set[str]:
        """The kinds of quantized copies of the target by which it drafts.

        `build` makes the copies that are not there.
        """
        own = methods.find(self.name).copy
        kinds = self.options.get("draft_weights", "same"), own(target) if own else None
        return {kind for kind in kinds if kind not in (None, "same")}

    def build(self, target: LM) -> Drafter:
        """A new drafter with these options.

        The drafter weights are loaded once in a run.
        """
        given = {k: v for k, v in self._read if k != "pace"}
        return methods.build(
            self.name, target, self.weights.of(methods.find(self.name).needs, target), **given
        )

    def paced(self, target: LM) -> Drafter:
        """The same drafter, adapted to predicted costs if `pace` is set."""
        drafter = self.build(target)
        return adapted(drafter, target) if self.pace else drafter

    def chain_depth(self, target: LM) -> int:
        """Drafts per step if every draft is a chain of fixed length, else 0."""
        drafter = self.build(target)
        return drafter.max_depth if drafter.is_chain else 0

    def check(self, target: LM, accept: float | None) -> None:
        """Build the drafter, and check that an oracle can accept this many drafts per step.

        Raises InputError.
        """
        depth = self.chain_depth(target)
        if accept is None:
            return
        if not depth:
            fault = "--accept needs methods that draft a chain of fixed length, such as vegas"
            raise InputError(f"{fault}: leave {self.label} out")
        if not 0 <= accept <= depth:
            fault = f"--accept is {accept:g}, and {self.label} drafts {depth} tokens a step"
            raise InputError(f"{fault}: give 0 to {depth}")
