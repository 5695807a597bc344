"""Predicts the cost of each part of a decoding step before it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from typing import Protocol

from longdraft.core import CaptureSpec, Sequences
from longdraft.costs.counts import counts_of, pass_over
from longdraft.costs.passes import Pass, PassCosts
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.correction import Correction
from longdraft.drafters.base import Drafter
from longdraft.drafters.price import DraftPrice, Lengths
from longdraft.models.lm import LM

# "plain", "verify" or "captured" (see `verification`), or the drafter whose drafts it is
PricedPart = str | Drafter
CORRECTED = (2, 8, 32)  # nodes by whose corrections it is seen that costs have changed


def verification(spec: CaptureSpec) -> PricedPart:
    """The part that a verification is measured as: one that keeps scores or states has a cost of
    its own.
    """
    return "verify" if spec.rows is None and not spec.hidden else "captured"


class Prices(Protocol):
    """Predicted seconds; only their ratios matter. corrects: measured seconds may be passed to
    `observe`.
    """

    corrects: bool

    def plain(self, lengths: Lengths) -> float:
        """A step without a draft."""
        ...

    def verify(self, lengths: Lengths, nodes: int, spec: CaptureSpec) -> float:
        """The rest of a step whose tree has this many nodes in each row, the root included."""
        ...

    def draft(self, drafter: Drafter, lengths: Lengths, depth: int, width: int) -> float:
        """One `grow` to this depth and width."""
        ...

    def ready(self, passes: Sequence[Pass]) -> float:
        """Seconds that a drafter must spend on reading before its next draft."""
        ...

    def handling(self, nodes: float) -> float:
        """Seconds that the host takes to add this many nodes to trees."""
        ...

    def observe(self, part: PricedPart, predicted: float, measured: float, nodes: int = 1) -> None:
        """A part of a step has taken so long. nodes: of each row in a verification."""
        ...

    @property
    def anchored(self) -> bool:
        """Whether it is known how long a plain step takes now."""
        ...

    def scale(self, part: PricedPart, nodes: int = 1) -> float:
        """The factor by which measurements correct the predictions for this part alone: 1 if
        they were right.
        """
        ...


def scales_of(prices: Prices, drafter: Drafter) -> tuple[float, ...]:
    """The corrections that measurements have made to predictions for this drafter's steps."""
    if not prices.corrects:
        return ()
    verified = (prices.scale("verify", nodes) for nodes in CORRECTED)
    return (*verified, prices.scale("captured"), prices.scale(drafter))


class Predicted:
    """Prices from the costs of passes; no clock is read here.

    corrects: measurements correct predictions. Those of plain steps correct all of them (a busy or
    throttled machine), those of another part that part's alone, since its ratio to a plain step is
    what decides, and those of a verification the ones that are about as wide. Where no plain step
    has been measured lately, the other parts correct both. Only for a target whose output does not
    depend on decisions.
    """

    def __init__(
        self,
        target: LM,
        costs: PassCosts,
        corrects: bool = False,
        constants: Constants = DEFAULTS,
    ):
        self.target = target
        self.constants = constants
        self.costs = costs
        self.corrects = corrects
        self.counts = counts_of(target)
        # the logarithm of what all predictions have in common
        self.together = 0.0
        self.apart: defaultdict[PricedPart, Correction] = defaultdict(Correction)
        self._count = 0
        self._plain_steps = 0
        self._rough = dict[PricedPart, bool]()
        self._since = constants.anchored_measurements  # measurements since that of a plain step
        self._known: dict[tuple[int, CaptureSpec], float] = {}  # passes over rows of _lengths
        self._prices: dict[Drafter, DraftPrice] = {}  # of drafts for them
        self._lengths: list[int] = []

    def plain(self, lengths: Lengths) -> float:
        return self._pass(lengths.slots, 1, CaptureSpec())

    def verify(self, lengths: Lengths, nodes: int, spec: CaptureSpec) -> float:
        captured = self.scale("captured") if verification(spec) == "captured" else 1.0
        return self._pass(lengths.slots, nodes, spec) * self.scale("verify", nodes) * captured

    def _pass(self, lengths: list[int], nodes: int, spec: CaptureSpec) -> float:
        self._meet(lengths)
        key = nodes, spec
        if key not in self._known:
            work = pass_over(self.counts, lengths, nodes, scored=spec, chosen=spec.rows is not None)
            self._known[key] = self.costs.seconds(work) + self.costs.step
        return self._known[key]

    def _meet(self, lengths: list[int]) -> None:
        """Forget what was predicted for rows of other lengths."""
        if lengths != self._lengths:
            self._lengths = lengths
            self._known = {}
            self._prices = {}

    def draft(self, drafter: Drafter, lengths: Lengths, depth: int, width: int) -> float:
        self._meet(lengths.slots)
        if drafter not in self._prices:
            self._prices[drafter] = drafter.price()
        seconds = self._prices[drafter].seconds(self.costs, lengths, depth, width)
        return seconds * self.scale(drafter)

    def ready(self, passes: Sequence[Pass]) -> float:
        return sum(map(self.costs.seconds, passes), 0.0)

    def handling(self, nodes: float) -> float:
        return nodes * self.costs.tree

    def scale(self, part: PricedPart, nodes: int = 1) -> float:
        return exp(self.apart[part].at(nodes))

    def observe(self, part: PricedPart, predicted: float, measured: float, nodes: int = 1) -> None:
        if predicted <= 0 or measured <= 0:
            return
        c = self.constants
        off = log(measured / predicted) - self.together
        if part == "plain":
            self._since = 0
            self._plain_steps += 1
            if self._plain_steps <= 1 / c.common_rate:
                self.together += off / self._plain_steps
            else:
                self.together += c.common_rate * _within(off, c.outlier)
            return
        self._since += 1
        if self._since > c.anchored_measurements and not self._is_rough(part):
            self._count += 1
            if self._count <= c.unanchored_measurements:  # they say nothing of a part by itself
                self.together += off / self._count
                return
            self.together += c.common_rate * _within(off, c.outlier)
            off *= 1 - c.common_rate
        if part == "captured" and nodes > 1:  # which of the two is wrong is not known
            self._correct("captured", off / 2, 1)
            self._correct("verify", off / 2, nodes)
        else:
            self._correct(part, off, nodes)

    def _correct(self, part: PricedPart, off: float, nodes: int) -> None:
        """The logarithm of this part's prediction for so many nodes was off by so much."""
        c = self.constants
        known = self.apart[part]
        seen = known.seen(nodes) + 1
        rate = c.rough_rate if self._is_rough(part) else c.part_rate
        rate = max(rate, 1 / (c.first_measurements + seen))
        outlier = c.first_outlier if seen <= c.first_measurements else c.outlier
        known.move(nodes, _within(off, outlier) * rate, log(c.max_correction))

    def _is_rough(self, part: PricedPart) -> bool:
        if part not in self._rough:
            self._rough[part] = isinstance(part, Drafter) and part.price().rough
        return self._rough[part]

    @property
    def anchored(self) -> bool:
        """Whether a plain step was measured lately."""
        return self._since < self.constants.anchored_measurements


@dataclass(frozen=True)
class CostTable:
    """The costs of all shapes of a drafter's trees, in plain steps, for the current rows.

    plain: seconds of a plain step. widths: limits that make a difference, ascending, each a key of
    the tables below. levels {width: nodes of each level}; draft {width: cost by depth, 0 for depth
    0}. verified: cost of verifying 0, 1, .. drafted nodes, where nothing is captured. look: what
    capturing and choosing a view adds. once: what the drafter must read first. captures: whether a
    step before a draft must capture something.
    """

    plain: float
    widths: list[int]
    levels: dict[int, list[float]]
    draft: dict[int, list[float]]
    verified: list[float]
    look: float = 0.0
    once: float = 0.0
    # of each width limit, the nodes of the widest level
    sizes: dict[int, int] = field(default_factory=dict)

    def drafted(self, depth: int, width: int) -> float:
        """The cost of a draft within these limits, also of one that is not in the table."""
        costs = self.draft[next((w for w in self.widths if w >= width), self.widths[-1])]
        return costs[min(depth, len(costs) - 1)]

    def verify(self, nodes: float) -> float:
        """Seconds to verify this many drafted nodes, which may be a mean."""
        whole = int(nodes)
        if whole + 1 >= len(self.verified):
            return self.verified[-1] * max(nodes / max(len(self.verified) - 1, 1), 1.0)
        return self.verified[whole] + (nodes - whole) * (
            self.verified[whole + 1] - self.verified[whole]
        )


def levels_of(drafter: Drafter, constants: Constants = DEFAULTS) -> dict[int, list[float]]:
    """{width limit: the maximum number of nodes of each level}, for the limits that make a
    difference.
    """
    price = drafter.price()
    deepest = min(drafter.max_depth, constants.max_levels)
    levels: dict[int, list[float]] = {}
    for width in constants.widths:
        nodes = [price.nodes(d, width) for d in range(deepest + 1)]
        counts = [float(max(b - a, 1)) for a, b in pairwise(nodes)]
        if counts not in levels.values():
            levels[width] = counts
    return levels


def tabulate(
    prices: Prices,
    drafter: Drafter,
    seqs: Sequences,
    levels: dict[int, list[float]],
    constants: Constants = DEFAULTS,
) -> CostTable:
    """The costs of a drafter's shapes now: some are predicted, and those between them
    interpolated.
    """
    lengths = Lengths.of(seqs)
    plain = prices.plain(lengths)
    spec = drafter.choosing()
    draft = {}
    deepest = len(next(iter(levels.values())))
    for width in levels:
        known = sorted({d for d in (1, 2, 4, deepest) if d <= deepest})
        costs = [(d, prices.draft(drafter, lengths, d, width) / plain) for d in known]
        draft[width] = _between([(0, 0.0), *costs])
    most = max(int(sum(x)) for x in levels.values())
    none = CaptureSpec()
    verified = verifications(prices, lengths, most, constants)
    middle = 1 + min(most, 4)
    look = (prices.verify(lengths, middle, spec) - prices.verify(lengths, middle, none)) / plain
    sizes = {w: int(max(x, default=1)) for w, x in levels.items()}
    if not drafter.renews:
        look /= drafter.lasts
    once = prices.ready(drafter.to_read(seqs)) / plain
    return CostTable(plain, list(levels), levels, draft, verified, max(look, 0.0), once, sizes)


def verifications(
    prices: Prices, lengths: Lengths, most: int, constants: Constants = DEFAULTS
) -> list[float]:
    """The costs of verifying 0 to `most` drafted nodes, in plain steps."""
    plain = prices.plain(lengths)
    knots = [n for n in constants.knots if n < most] + [most]
    costs = [
        (n, max(prices.verify(lengths, n + 1, CaptureSpec()) / plain, 1.0) if n else 1.0)
        for n in knots
    ]
    return _between(costs)


def _within(x: float, ratio: float) -> float:
    """The logarithm of a ratio, brought within that of `ratio` and of 1 / ratio."""
    return min(max(x, -log(ratio)), log(ratio))


def _between(points: list[tuple[int, float]]) -> list[float]:
    """The values at 0..n of the lines between points, of which the first is at 0."""
    values = [points[0][1]]
    for (low, a), (high, b) in pairwise(points):
        values += [a + (b - a) * (n - low) / (high - low) for n in range(low + 1, high + 1)]
    return values
