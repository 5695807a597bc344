"""The candidates of `auto`, by the records of the methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from longdraft.drafters import Drafter
from longdraft.drafters.held_out import expect
from longdraft.errors import InputError
from longdraft.methods.method import Method, Trial
from longdraft.methods.self_speculative import by_a_copy, vegas
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
    _check_used("auto", weights, tried)
    built = [_built(method, trial, target, weights) for method, trial in tried]
    named = sum(trial.named for _, trial in tried)
    return [*built[:named], *by_a_copy(target), *built[named:]]


def model_drafter(methods: Iterable[Method], target: LM, weights: Mapping[str, Any]) -> Drafter:
    """The first candidate of `auto` that has drafter weights; without weights, drafts by a
    quantized copy, or `vegas` where none is worth its memory.

    weights: {kind: drafter weights}. Raises InputError.
    """
    tried = [(m, trial) for m, trial in _in_order(methods) if m.needs in weights]
    _check_used("fill", weights, tried)
    if tried:
        return _built(*tried[0], target, weights)
    return next(iter(by_a_copy(target)), None) or vegas(target)


def _check_used(
    name: str, weights: Mapping[str, Any], tried: Iterable[tuple[Method, Trial]]
) -> None:
    if unused := sorted(weights.keys() - {method.needs for method, _ in tried}):
        raise InputError(
            f"{name} tries no method that needs drafter weights of kind {unused[0]}: choose "
            "the method"
        )


def _built(method: Method, trial: Trial, target: LM, weights: Mapping[str, Any]) -> Drafter:
    """The drafter of a candidate, with its weights if it needs some."""
    if not method.needs:
        return method.build(target, **trial.options)
    own = weights[method.needs]
    return expect(method.build(target, own, **trial.options), own)


def _in_order(methods: Iterable[Method]) -> list[tuple[Method, Trial]]:
    """The methods that have a trial, those whose weights must be named first."""
    tried = [(method, method.trial) for method in methods if method.trial]
    return sorted(tried, key=lambda entry: (not entry[1].named, entry[1].place))
