"""Steps in which no draft is considered, since considering one takes time."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.02  # of all time that considering drafts may take while none is made


@dataclass
class Rest:
    """Rests double with each decision against a draft, and end with one for a draft.

    left: further steps of this rest. refused: decisions against a draft since the last one for one.
    """

    left: int = 0
    refused: int = 0

    def goes_on(self) -> bool:
        """Count a step. Whether it is one of the rest."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def end(self) -> None:
        """A draft was made, or rows have begun."""
        self.left = 0
        self.refused = 0

    def begin(self, cost: float) -> None:
        """A draft was considered at this cost, in plain steps, and refused."""
        self.refused += 1
        longest = max(int(cost / SHARE) - 1, 0)
        self.left = min(2 ** min(self.refused - 1, 16) - 1, longest)
