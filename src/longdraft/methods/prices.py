"""The prices by which the drafters of a target are adapted."""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.drafters import AdaptiveDraft, Drafter, Fill
from longdraft.drafters.adaptive.prices import Predicted
from longdraft.models.lm import LM
from longdraft.tuning.known import known_costs


def adapted(drafter: Drafter, target: LM) -> AdaptiveDraft:
    """The drafter as an AdaptiveDraft with the target's known costs."""
    return AdaptiveDraft(drafter, *_prices(target))


def filled(drafters: Sequence[Drafter], target: LM, most: int) -> Fill:
    """The best of these drafters, filled with at most `most` continuations of the text, by the
    target's known costs.
    """
    return Fill(drafters, *_prices(target), most=most)


def _prices(target: LM) -> tuple[Predicted, Predicted]:
    """Prices for outputs that cannot depend on them, and prices for outputs that can.

    Only the first may be corrected by measurements.
    """
    fixed = Predicted(target, known_costs(target, exact=False))
    return (Predicted(target, known_costs(target), corrects=True) if target.exact else fixed), fixed
