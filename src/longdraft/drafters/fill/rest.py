"""Steps in which no draft is considered, since considering one takes time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# The shares of all time that considering drafts may take while none is made, and looking whether
# the text goes on as it did before.
CONSIDERING = 0.006
LOOKING = 0.004
# Nearly every token was there before: such matches do not end a rest.
COMMON = 1


@dataclass
class Rest:
    """Rests double with each decision against a draft. A draft of which something was accepted ends
    them, and so does a longer match; one of which nothing was accepted changes nothing.

    left: further steps of this rest. refused: decisions against a draft since a better one.
    level: of the longest match with which a draft was refused, see `Continuations.level`. apart:
    steps from one look at the text to the next. passed: steps in which nothing at all was done,
    since `count`. quiet: the present step is one of them.
    """

    left: int = 0
    refused: int = 0
    level: int = COMMON
    apart: int = 1
    passed: int = 0
    quiet: bool = False

    def passes(self) -> bool:
        """Count a step in which nothing is done, if this may be one.

        Little is read here: after a pass over the weights no cache has any of what Python needs.
        """
        self.quiet = self.left % self.apart > 0
        if self.quiet:
            self.left -= 1
            self.passed += 1
        return self.quiet

    def looks(self) -> bool:
        """Count another step of the rest, in which the text is looked at. False: it has ended."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def count(self) -> int:
        """The steps in which nothing was done, since the last call."""
        passed = self.passed
        self.passed = 0
        return passed

    def interrupt(self) -> None:
        """A longer match was seen: in this step a draft is considered."""
        self.left = 0

    def end(self) -> None:
        """Some of a draft was accepted, a model drafter is wanted, or rows have begun."""
        self.left = 0
        self.refused = 0
        self.level = COMMON
        self.quiet = False

    def begin(self, cost: float, looking: float, level: int) -> None:
        """A draft was considered at this cost, in plain steps, and refused. looking: the cost of
        looking at the text.
        """
        self.refused += 1
        self.level = max(self.level, level)
        self.apart = max(ceil(looking / LOOKING), 1)
        longest = max(int(cost / CONSIDERING) - 1, 0)
        self.left = min(2 ** min(self.refused - 1, 16) - 1, longest)
