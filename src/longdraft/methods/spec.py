"""Which methods a run compares, and with what options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from longdraft import methods
from longdraft.core.options import pair, read
from longdraft.drafters import AdaptiveDraft, Drafter
from longdraft.errors import InputError
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.models.lm import LM

STOCK = ("hf-dynamic", "hf-static")  # Transformers' own generate


@dataclass
class MethodSpec:
    """A method with options, under the label that the run's tables show, and where its part with weights comes from."""

    label: str
    name: str
    given: dict[str, str] = field(default_factory=dict)
    parts: DrafterWeights = field(default_factory=DrafterWeights)

    @property
    def stock(self) -> bool:
        return self.name in STOCK

    @property
    def speculative(self) -> bool:
        return not self.stock and self.name != "plain"

    @property
    def pace(self) -> bool:
        """Whether drafts are as deep as pays, not as options say; `auto` sees to that itself. Raises InputError."""
        return dict(self._read()).get("pace") == "on"

    @property
    def needs(self) -> str | None:
        return None if self.stock else methods.find(self.name).needs

    @property
    def origin(self) -> dict[str, str]:
        """What a record says of its part."""
        found = self.parts.origin(self.needs)
        return {} if found is None else {"drafter": found}

    @property
    def options(self) -> dict[str, Any]:
        """Every option of the method with the value it has."""
        return {} if self.stock else self._read().model_dump(exclude={"pace"})

    def _read(self) -> BaseModel:
        return read(self.name, methods.find(self.name).options, self.given, text=True)

    @property
    def gamma(self) -> int | None:
        """Drafts a step of a method that always drafts as many, as a chain: n-grams below one make it a tree."""
        widths = str(self.options.get("widths", "")).split(",")
        if set(widths) == {"1"}:
            return len(widths)
        return None if "topk" in self.options else self.options.get("gamma")

    @property
    def longest(self) -> int:
        """Depth of its drafts at most; 16 holds the trees too that are as deep as they turn out."""
        return self.gamma or self.options.get("count", 16)

    def build(self, target: LM) -> Drafter:
        """A new drafter as its options say; what it needs besides the target is made once in a run."""
        given = {k: v for k, v in self._read() if k != "pace"}
        return methods.build(self.name, target, self.parts.of(self.needs, target), **given)

    def paced(self, target: LM) -> Drafter:
        """The same, drafting as deep as pays (unless `-o pace=off`)."""
        return AdaptiveDraft(self.build(target)) if self.pace else self.build(target)


def parse(names: str, options: list[str], parts: DrafterWeights | None = None) -> list[MethodSpec]:
    """`vegas,vegas@score=weights` and `-o vegas.gamma=4` -> entries. Raises InputError."""
    entries, parts = [], parts or DrafterWeights()
    for label in filter(None, (part.strip() for part in names.split(","))):
        name, *pairs = label.split("@")
        if name not in STOCK and name not in methods.METHODS | methods.CONTROLS:
            known = ", ".join([*methods.METHODS, *methods.CONTROLS, *STOCK])
            raise InputError(f"unknown method {name!r}: choose from {known}")
        entries.append(MethodSpec(label, name, dict(pair(p) for p in pairs), parts))
    if not entries:
        raise InputError("no method is named: give --methods plain,vegas, say")
    twice = next((e.label for i, e in enumerate(entries) if e.label in [x.label for x in entries[:i]]), None)
    if twice:
        raise InputError(f"{twice} is named twice: name it once, or set options apart, as in vegas@gamma=4")
    for option in options:
        name, dot, rest = option.partition(".")
        mine = [e for e in entries if e.name == name]
        if not dot or not mine:
            raise InputError(f"option {option!r} fits no method of this run: give METHOD.KEY=VALUE, as vegas.gamma=5")
        key, value = pair(rest)
        for entry in mine:
            entry.given.setdefault(key, value)
    return entries


def check(entries: list[MethodSpec], target: LM, accept: float | None) -> None:
    """Builds each method once, so that a bad option is found before any work. Raises InputError."""
    for entry in entries:
        if entry.stock and entry.given:
            raise InputError(f"{entry.name} has no options")
        if entry.stock:
            continue
        entry.paced(target)
        if accept is None or not entry.speculative:
            continue
        if entry.gamma is None:
            raise InputError(f"--accept needs methods that draft a chain of fixed length: leave {entry.name} out")
        if not 0 <= accept <= entry.gamma:
            raise InputError(f"accept is {accept:g}; {entry.label} drafts {entry.gamma}: give 0 to {entry.gamma}")
