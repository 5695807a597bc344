"""How much drafting may cost beyond plain decoding before it has gained anything."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from longdraft.drafters.adaptive.constants import DEFAULTS, Constants


@dataclass
class Budget:
    """debt: the cost of drafting beyond plain decoding of the same tokens, in plain steps; below 0:
    it has gained.

    It never exceeds allowed * sqrt(early + tokens), whatever the target accepts, if no draft is
    made that `allows` refuses. tokens: of each row since the debt was last below 0.
    """

    debt: float = 0.0
    tokens: float = 0.0
    constants: Constants = DEFAULTS

    @property
    def slack(self) -> float:
        """How much more the next steps may cost than plain ones."""
        c = self.constants
        return c.allowed * (c.early + self.tokens) ** 0.5 - self.debt

    def allows(self, extra: float) -> bool:
        return extra <= self.slack

    def wait(self, extra: float) -> int:
        """Plain steps until this extra cost is allowed."""
        c = self.constants
        tokens = (max(self.debt + extra, 0.0) / c.allowed) ** 2
        return max(ceil(tokens - c.early - self.tokens), 0)

    def owe(self, cost: float, tokens: float) -> None:
        """A step has cost `cost` plain steps and emitted this many tokens per row."""
        self.debt = max(self.debt + cost - tokens, -self.constants.credit)
        self.tokens = 0.0 if self.debt < 0 else self.tokens + tokens

    def begin(self) -> None:
        """Another text begins: earlier gains may not be lost on it."""
        self.debt = max(self.debt, 0.0)
