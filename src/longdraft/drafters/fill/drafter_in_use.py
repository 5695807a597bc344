"""Which of several model drafters drafts."""

from __future__ import annotations

from collections.abc import Sequence

from longdraft.core import Sequences
from longdraft.drafters.adaptive.constants import Constants
from longdraft.drafters.fill.model_source import ModelSource


class DrafterInUse:
    """One of the sources drafts at a time: the one that promises the most tokens per second.

    Promises are compared when rows begin, every few steps, and once the drafter in use is not
    wanted; another takes over if its promise is clearly better. At first a promise follows from
    costs and what is usual, later from what was accepted. What was seen of the others fades, so one
    that was refused gets another chance.

    now: the source in use. steps: since the last comparison.
    """

    def __init__(self, sources: Sequence[ModelSource], constants: Constants):
        self.sources = sources
        self.constants = constants
        self.now = sources[0]
        self.steps = 0
        self._wanted = True  # whether the drafter in use was wanted in the step before

    def begin(self, seqs: Sequences) -> None:
        """Rows begin, and prices are known."""
        self.steps = 0
        self._wanted = True
        if len(self.sources) > 1 and len(seqs.length):
            self.now = max(self.sources, key=lambda source: self._promise(source, seqs))

    def _promise(self, source: ModelSource, seqs: Sequences) -> float:
        """With doubts where costs are only a guess and nothing corrects it at present."""
        doubted = source.rough and source is not self.now
        return (self.constants.doubts if doubted else 1.0) * source.promise(seqs)

    def step(self, seqs: Sequences, wanted: bool) -> bool:
        """A step has ended. wanted: whether the next draft of the drafter in use is worth its
        captures -> whether another one takes over.
        """
        if len(self.sources) == 1:
            return False
        gave_up = self._wanted and not wanted
        self._wanted = wanted
        self.steps += 1
        return (gave_up or self.steps >= self._interval(wanted)) and self._compare(seqs)

    def _interval(self, wanted: bool) -> float:
        """Steps between two comparisons, which may take a small share of the predicted time."""
        c = self.constants
        steps = c.compare_every if wanted else c.compare_rarely
        table = self.now.pace.table
        if table is None:
            return steps
        return max(steps, c.compare_s * len(self.sources) / (c.compare_share * table.plain))

    def _compare(self, seqs: Sequences) -> bool:
        share = self.constants.forget ** (self.steps / self.constants.compare_every)
        self.steps = 0
        for source in self.sources:
            if source is not self.now:
                source.forget(share)
        least = self.constants.better * max(self._promise(self.now, seqs), 1.0)
        best = max(self.sources, key=lambda source: self._promise(source, seqs))
        if best is self.now or self._promise(best, seqs) <= least:
            return False
        self.now = best
        self._wanted = True
        return True
