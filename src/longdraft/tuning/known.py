"""The costs of a model's passes before its first token."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from longdraft.costs.counts import counted
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM
from longdraft.tuning.measure import measured_briefly
from longdraft.tuning.stored import stored

# by whether they may be measured
_KNOWN: WeakKeyDictionary[LM, dict[bool, PassCosts]] = WeakKeyDictionary()


def known_costs(target: LM, exact: bool = True) -> PassCosts:
    """The best costs that are known: stored, else measured now, else counted.

    exact: whether the output cannot depend on the costs, whatever they are: only then, and where
    the backend is exact, they may be measured now (in at most 0.7 s), because two processes never
    measure the same. Asked once per model: later calls return the same costs.
    """
    measurable = exact and target.exact
    with target.lock:
        known = _KNOWN.setdefault(target, {})
        if measurable not in known:
            costs = stored(target)
            if costs is None and measurable:
                costs = measured_briefly(target)
            known[measurable] = costs or counted(target)
        return known[measurable]


def forget(target: LM) -> None:
    """Ask anew at the next call, for costs that were stored meanwhile."""
    _KNOWN.pop(target, None)
