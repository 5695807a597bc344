"""Named methods: each is a record (table.py) whose function builds a drafter from the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longdraft.core.options import declared, read
from longdraft.drafters import Drafter
from longdraft.drafters.held_out import expect
from longdraft.drafters.kinds import load_weights, own_weights
from longdraft.errors import InputError
from longdraft.methods import elsewhere
from longdraft.methods.drafter_weights import DrafterWeights, how_to_get
from longdraft.methods.method import ANY, Method, Trial
from longdraft.methods.prices import adapted
from longdraft.methods.table import CONTROLS, METHODS
from longdraft.models.lm import LM

__all__ = ["ANY", "CONTROLS", "METHODS", "Method", "Trial", "build", "find", "lookup", "names"]


def lookup(name: str) -> Method | None:
    """longdraft's own method of this name, or that of another package; None: there is none.

    Raises InputError.
    """
    own = METHODS.get(name) or CONTROLS.get(name)
    if own is not None:
        return own
    added = elsewhere.find(name)
    return added.method if added else None


def names() -> list[str]:
    """The names of all methods: longdraft's own, its controls, and those of other packages."""
    return [*METHODS, *CONTROLS, *elsewhere.names()]


def find(name: str) -> Method:
    """The method of this name.

    Raises InputError on an unknown name.
    """
    method = lookup(name)
    if method is None:
        raise InputError(f"unknown method {name!r}: choose one of {', '.join(names())}")
    return method


def build(
    name: str,
    target: LM,
    drafter: Any = None,
    *,
    adaptive: bool = False,
    any_target: bool = False,
    **options: Any,
) -> Drafter:
    """The drafter of a named method with these options (`longdraft methods` lists them).

    Raises InputError.
    drafter: the drafter weights of a method that needs some: a folder, a Hub id, or a loaded
    module. any_target: also accept weights that were trained for another target. adaptive: wrap the
    drafter in AdaptiveDraft, with the known costs of the target (tuning/known.py).
    """
    method = find(name)
    given = dict(read(name, declared(method.build), options))
    if method.needs is None:
        made = method.build(target, **given)
    elif method.needs == ANY:
        if isinstance(drafter, str | Path):
            drafter = DrafterWeights(str(drafter), any_target=any_target).of(ANY, target)
        made = method.build(target, drafter or {}, **given)
    else:
        weights = own_weights(method.needs, target) if drafter is None else drafter
        if weights is None:
            raise InputError(
                f"{name} needs a drafter of kind {method.needs}: "
                f"{how_to_get(method.needs, target.name)}"
            )
        loaded = load_weights(method.needs, weights, target, any_target)
        made = expect(method.build(target, loaded, **given), loaded)
    return adapted(made, target) if adaptive and method.adaptive else made
