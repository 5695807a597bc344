"""The gain of a step in a batch, which takes as long as its slowest row."""

from __future__ import annotations

from longdraft.core import Sequences


class SlowestRow:
    """Counts the new tokens of the row that has the fewest; None: not known since rows began."""

    def __init__(self) -> None:
        self.new: int | None = None

    def forget(self) -> None:
        """Rows have begun."""
        self.new = None

    def plain_steps(self, count: int) -> None:
        """Every row has so many more tokens."""
        if self.new is not None:
            self.new += count

    def gain(self, seqs: Sequences, mean: float) -> float:
        """Tokens that the latest step has brought to the row that is behind.

        mean: of all rows, which counts where there is one row, or others than before.
        """
        if len(seqs.length) == 1:
            return mean
        new = (seqs.length - seqs.prompt).tolist()
        done = seqs.done.tolist()
        before = self.new
        self.new = min((n for n, over in zip(new, done, strict=True) if not over), default=None)
        if self.new is None or before is None or self.new <= before:
            return mean
        return float(self.new - before)
