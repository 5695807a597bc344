"""The candidates of `auto`, by the records of the methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from longdraft.drafters import Drafter
from longdraft.drafters.held_out import expect
from longdraft.errors import InputError
from longdraft.methods.method import Method, Trial
from longdraft.methods.self_speculative import by_a_copy
from longdraft.models.lm import LM


def kinds_beside(methods: Iterable[Method]) -> list[str]:
    """Kinds of drafter weights that `auto` uses although nobody named them, in order."""
    return [
        method.needs for method, trial in _in_order(methods) if method.needs and not trial.named
    ]


def candidates(methods: Iterable[Method], target: LM, weights: Mapping[str, Any]) -> list[Drafter]:
    """A drafter of each method that can be used; of equal forecasts the first one counts.

    weights: {kind: drafter weights}. Raises InputError.
    """
    tried = [(m, trial) for m, trial in _in_order(methods) if m.needs is None or m.needs in weights]
    if unused := sorted(weights.keys() - {method.needs for method, _ in tried}):
        raise InputError(
            f"auto tries no method that needs drafter weights of kind {unused[0]}: choose "
            "the method"
        )
    built = list[Drafter]()
    for method, trial in tried:
        if method.needs:
            own = weights[method.needs]
            built.append(expect(method.build(target, own, **trial.options), own))
        else:
            built.append(method.build(target, **trial.options))
    named = sum(trial.named for _, trial in tried)
    return [*built[:named], *by_a_copy(target), *built[named:]]


def _in_order(methods: Iterable[Method]) -> list[tuple[Method, Trial]]:
    """The methods that have a trial, those whose weights must be named first."""
    tried = [(method, method.trial) for method in methods if method.trial]
    return sorted(tried, key=lambda entry: (not entry[1].named, entry[1].place))
