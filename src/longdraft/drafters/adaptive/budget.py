"""How much drafting may cost beyond plain decoding before it has gained anything."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# ALLOWED and EARLY are such that text that drafts badly costs 4% of 96 tokens and 2% of 512 at
# most, with room for
# errors of predicted costs; CREDIT is set by benchmarks/adaptive_simulation.py (docs/log).
ALLOWED = 0.31  # plain steps, times the root of the tokens since drafting last had gained something
EARLY = 16  # tokens that count from the beginning, so that something may be tried at once
CREDIT = 8.0  # plain steps: the largest gain that may be lost again


@dataclass
class Budget:
    """debt: what drafting has cost beyond plain decoding of the same tokens, in plain steps; below
    0: it has gained.

    It never exceeds ALLOWED * sqrt(EARLY + tokens), whatever the target accepts, if no draft is
    made that `allows` refuses. tokens: of each row since the debt was last below 0.
    """

    debt: float = 0.0
    tokens: float = 0.0

    @property
    def slack(self) -> float:
        """How much more the next steps may cost than plain ones."""
        return ALLOWED * (EARLY + self.tokens) ** 0.5 - self.debt

    def allows(self, extra: float) -> bool:
        return extra <= self.slack

    def wait(self, extra: float) -> int:
        """Plain steps until so much is allowed."""
        return max(ceil((max(self.debt + extra, 0.0) / ALLOWED) ** 2 - EARLY - self.tokens), 0)

    def owe(self, cost: float, tokens: float) -> None:
        """A step has cost `cost` plain steps and emitted this many tokens per row."""
        self.debt = max(self.debt + cost - tokens, -CREDIT)
        self.tokens = 0.0 if self.debt < 0 else self.tokens + tokens

    def begin(self) -> None:
        """Another text begins: what drafting has gained before may not be lost on it."""
        self.debt = max(self.debt, 0.0)
