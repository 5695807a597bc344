"""The costs of the parts of a step that copies from the text, with or without a draft."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from time import perf_counter

from longdraft.core import CaptureSpec, Sequences
from longdraft.drafters.adaptive.basis import Basis
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.prices import (
    CostTable,
    levels_of,
    scales_of,
    tabulate,
    verification,
    verifications,
)
from longdraft.drafters.adaptive.prices_in_use import PricesInUse
from longdraft.drafters.base import Drafter
from longdraft.drafters.ngram.suffix import Suffix
from longdraft.drafters.price import Lengths

# Copied nodes whose handling takes as long as considering a draft, and as asking a model drafter
# for one and filling it.
DECISION = 8.0
ASKING = 40.0
LOOK = 0.7  # the same for looking how long the text's match is


class StepCosts:
    """All costs are in plain steps of the rows for which `table` was predicted last.

    most: copied nodes. each: the host's work for one of them. least: what any further node costs at
    least; one that is less likely to be accepted never pays. decision, looking: the host's work for
    considering a draft, and for looking at the text. table: the inner drafter's costs, and those of
    verifying its largest tree with `most` other nodes.
    """

    def __init__(
        self,
        inner: Drafter,
        suffix: Suffix,
        prices: PricesInUse,
        most: int,
        constants: Constants = DEFAULTS,
    ):
        self.inner = inner
        self.suffix = suffix
        self.prices = prices
        self.most = most
        self.constants = constants
        self.levels = levels_of(inner, constants)
        self.table: CostTable | None = None
        self.each = 0.0
        self.least = 0.0
        self.decision = 0.0
        self.looking = 0.0
        self._basis = Basis()
        self._began = 0.0  # when the verification began; 0: it is not timed

    def known(self, seqs: Sequences) -> tuple[CostTable, bool]:
        """The costs of these rows, and whether they are new."""
        prices = self.prices.now
        assert prices is not None
        rows = len(seqs.length)
        slots = int(seqs.cache.length.sum())
        scales = scales_of(prices, self.inner)
        fits = self._basis.fits(rows, slots, self.constants.growth)
        if self.table and fits and not self._basis.moved(scales, self.constants.moved):
            return self.table, False
        self._basis = Basis(rows, slots, scales)
        lengths = Lengths.of(seqs)
        table = tabulate(prices, self.inner, seqs, self.levels, self.constants)
        most = self.most + max(int(sum(level)) for level in self.levels.values())
        verified = verifications(prices, lengths, most, self.constants)
        self.each = prices.draft(self.suffix, lengths, 1, 1) / table.plain
        asking = prices.handling(ASKING) / table.plain
        draft = {w: [0.0, *(cost + asking for cost in c[1:])] for w, c in table.draft.items()}
        self.table = replace(table, draft=draft, verified=verified)
        self.least = self.each + min(after - before for before, after in pairwise(verified))
        self.decision = DECISION * self.each
        self.looking = LOOK * self.each
        return self.table, True

    def reading(self, seqs: Sequences) -> float:
        """The cost of what the inner drafter would read now before a draft."""
        prices = self.prices.now
        assert prices is not None and self.table is not None
        return prices.ready(self.inner.to_read(seqs)) / self.table.plain

    def clock(self) -> float:
        """The time where measurements correct predictions, else 0."""
        prices = self.prices.now
        return perf_counter() if prices is not None and prices.corrects else 0.0

    def drafted(self, depth: int, width: int, begin: float) -> None:
        """Since `begin`, see `clock`, the inner drafter made such a draft, and it was filled."""
        prices = self.prices.now
        if begin and prices is not None and self.table is not None:
            predicted = self.table.drafted(depth, width) * self.table.plain
            prices.observe(self.inner, predicted, perf_counter() - begin)

    def begin(self) -> None:
        """The verification begins now."""
        self._began = self.clock()

    def skip(self) -> None:
        """The time of this verification means nothing."""
        self._began = 0.0

    def verified(self, nodes: int, spec: CaptureSpec) -> float:
        """A tree with this many drafted nodes has been verified -> what that was expected to
        cost.
        """
        table = self.table
        prices = self.prices.now
        assert table is not None and prices is not None
        part = verification(spec)
        cost = table.verify(nodes) + (table.look if part == "captured" else 0.0)
        if self._began:
            plain = not nodes and part == "verify"
            seconds = perf_counter() - self._began
            prices.observe("plain" if plain else part, cost * table.plain, seconds, 1 + nodes)
            self._began = 0.0
        return cost
