"""The prices that may decide, by verifier."""

from __future__ import annotations

from collections.abc import Callable

from longdraft.costs.counts import counted
from longdraft.drafters.adaptive.prices import Predicted, Prices
from longdraft.models.lm import LM


def by_arithmetic(target: LM) -> Predicted:
    """Prices from the counts of the target's passes; nothing is measured."""
    return Predicted(target, counted(target))


class PricesInUse:
    """Two prices, both known or neither: those for outputs that no draft can change, and `fixed`
    ones for verify=reject, where the output depends on what is drafted.

    default: makes both once the target is known, if none are given.
    """

    def __init__(
        self,
        usual: Prices | None,
        fixed: Prices | None = None,
        default: Callable[[LM], Prices] = by_arithmetic,
    ):
        self.usual = usual
        self.fixed = fixed or usual
        self.rejects = False  # whether the verifier in use is verify=reject
        self._default = default

    @property
    def now(self) -> Prices | None:
        """The prices that may decide under the verifier in use; None: not known yet."""
        return self.fixed if self.rejects else self.usual

    def learn(self, target: LM) -> None:
        """Make the default prices, if none are known."""
        if self.usual is None:
            self.usual = self._default(target)
            self.fixed = self.usual
