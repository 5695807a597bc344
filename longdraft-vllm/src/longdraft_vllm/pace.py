"""Decides, for each step of a batch, whether drafting it would be faster than decoding it
plainly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from longdraft_vllm.acceptance import Acceptance
from longdraft_vllm.costs import Costs, Size, along

MARGIN = 1.03  # a draft must promise this many times plain decoding's rate: predictions have errors
FIRST = 3  # plain steps that are measured before anything is drafted at a size
TRIALS = 2  # drafts that are measured at a size before it may be given up
# plain steps that drafting may have cost more than it gained, and most that count
LIMIT = 4.0
MOST = 8.0
# how much of that each step forgives: the share of time that trials may take in the long run
PAID = 0.005
RENEW = 64  # steps with drafts after which a plain one is measured again


@dataclass(frozen=True)
class Shape:
    """A draft that could be made: how many tokens it drafts and probably gains in all, and its
    seconds before the verification, None if not known.
    """

    drafted: int
    gained: float
    seconds: float | None
    payload: Any = None


class Row(NamedTuple):
    """A request's tokens so far, and how many of them are new."""

    length: int
    new: int


class Pace:
    """Drafting never costs more than LIMIT plain steps beyond what it has gained, and later PAID of
    the time.

    `saw` measures the step that has ended, `pick` chooses the next draft, `ended` says that it was
    made. The clock is read here only. Without a step's time, because requests came, left or paused,
    nothing is learned from it.
    """

    def __init__(self, usual: float, most: int, clock: Callable[[], float] | None = None):
        self.acceptance = Acceptance(usual, most)
        self.costs = Costs()
        self.clock = clock or perf_counter
        self.debt = 0.0  # seconds
        self.stopped = (
            False  # whether drafting has come to its limit and half of its debt is not yet forgiven
        )
        self.drafting = 0  # steps with drafts since the last plain one
        # requests and drafted tokens: the first pass over so many tokens is slower
        self.warm: set[Size] = set()
        self.clean = True  # whether the next step, if plain, is like one without the plugin
        self._begun = 0.0
        self._start = 0.0
        self._end = 0.0
        self._lengths: dict[object, int] = {}  # of the last step's requests
        self._drafted = 0
        # what a trial is expected to lose, until it has been measured
        self._charge = 0.0
        self._charged = 0.0

    def saw(self, rows: Mapping[object, Row], alone: bool) -> None:
        """A step has ended with these requests, and no others if `alone`."""
        now = self.clock()
        same = {request: row.length - row.new for request, row in rows.items()} == self._lengths
        if same and alone and rows:
            self._measure(size_of(rows.values()), sum(row.new for row in rows.values()), now)
        self._start = now

    def _measure(self, size: Size, tokens: int, now: float) -> None:
        step = now - self._end
        times = self.costs.at(size)
        if not self._drafted:
            if self.clean:
                times.plain.append(step)
            self.debt = max(self.debt - PAID * step, 0.0)
            return
        if (passed := (size[0], self._drafted)) in self.warm:
            self.costs.verified(size, self._drafted, step)
        self.warm.add(passed)
        if times.plain:
            plain = self.costs.plain(size)
            lost = now - self._begun - plain * tokens / size[0]
            self.debt = min(max(self.debt + lost - self._charged - PAID * step, 0.0), MOST * plain)
            self.stopped |= self.debt > LIMIT * plain

    def pick(self, rows: Mapping[object, Row], shapes: Iterable[Shape]) -> Shape | None:
        """The shape that is fastest, or worth a trial; None: decode plainly."""
        size = size_of(rows.values())
        times = self.costs.at(size)
        if len(times.plain) < FIRST or self.drafting >= RENEW:
            times.forget()
            return None
        plain = self.costs.plain(size)
        self.stopped &= self.debt > LIMIT / 2 * plain
        self._charge = plain
        tried = sum(map(len, times.verify.values()))
        if self.stopped and self.debt > 0 and tried >= TRIALS:
            return None
        found = list(shapes)
        verify = self.costs.verify(size)
        if not found:
            return None
        if verify is None or any(
            shape.seconds is None for shape in found
        ):  # nothing like it was ever measured
            return None if self.stopped else found[len(found) // 2]

        def rate_of(shape: Shape) -> float:
            """Tokens per second, in plain decoding's."""
            seconds = along(verify, shape.drafted / size[0]) + (shape.seconds or 0.0)
            return (size[0] + shape.gained) / seconds * plain / size[0]

        best = max(found, key=rate_of)
        rate = rate_of(best)
        lost = plain * (1 + best.gained / size[0]) * (1 / rate - 1)
        self._charge = max(lost, 0.0)
        if rate >= MARGIN and not self.stopped:
            return best
        may_try = self.debt <= 0 or (tried < TRIALS and self.debt + lost <= LIMIT * plain)
        return best if may_try else None

    def ended(self, rows: Mapping[object, Row], drafted: int) -> None:
        """Drafts of so many tokens were made after this step; the next one begins now."""
        self._lengths = {request: row.length for request, row in rows.items()}
        self._begun = self._start
        self._end = self.clock()
        self._drafted = drafted
        self._charged = self._charge if drafted else 0.0
        self.debt += self._charged
        self.drafting = self.drafting + 1 if drafted else 0
        self.acceptance.keep(set(rows))


def size_of(rows: Iterable[Row]) -> Size:
    lengths = [row.length for row in rows]
    return len(lengths), sum(lengths)


def agree(found: Any) -> Any:
    """What the first of the processes that share the model has found: clocks differ, and all must
    draft alike.
    """
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    return group.broadcast_object(found) if group.world_size > 1 else found
