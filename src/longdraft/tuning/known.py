"""The costs of a model's passes before its first token."""

from __future__ import annotations

from longdraft.costs.counts import counted
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM


def known_costs(target: LM, exact: bool = True) -> PassCosts:
    """The best costs that are known: measured before and stored, else measured now, else counted.

    exact: whether the output cannot depend on the costs, whatever they are: only then, and where the backend is exact,
    they may be measured now (in at most 0.7 s), because two processes never measure the same.
    """
    return counted(target)
