"""What steps take here, measured while vLLM runs."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import log
from statistics import median

GRAIN = 1.25  # batches and contexts within this factor count as the same size
# how many of the latest times a median is of
PLAINS = 9
OTHERS = 5
FEW = 2  # times that may have been slow by chance
PART = 0.25  # drafted tokens per request are told apart in such parts

Size = tuple[int, int]  # requests, and tokens of context in all


@dataclass
class Times:
    """The latest times of one size: of plain steps, and of verifications by drafted tokens per
    request.
    """

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=PLAINS))
    verify: dict[float, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=OTHERS))
    )
    # of one drafted token per request
    draft: deque[float] = field(default_factory=lambda: deque(maxlen=OTHERS))
    # of new views for all requests
    select: deque[float] = field(default_factory=lambda: deque(maxlen=OTHERS))

    def forget(self) -> None:
        """Give numbers of drafted tokens that were rarely measured another chance, if any was
        measured often.
        """
        often = {drafted: times for drafted, times in self.verify.items() if len(times) > FEW}
        if often:
            self.verify.clear()
            self.verify.update(often)


class Costs:
    """Each time is a median of what was measured; what was not measured is scaled from the nearest
    size that was.
    """

    def __init__(self) -> None:
        self.times: dict[Size, Times] = defaultdict(Times)

    def at(self, size: Size) -> Times:
        return self.times[bucket(size)]

    def plain(self, size: Size) -> float:
        """Seconds of a plain step. This size must have been measured."""
        return median(self.at(size).plain)

    def verified(self, size: Size, drafted: int, seconds: float) -> None:
        """A step that verified so many drafted tokens, of all requests together."""
        self.at(size).verify[per_request(size, drafted)].append(seconds)

    def verify(self, size: Size) -> list[tuple[float, float]] | None:
        """(drafted tokens per request, seconds of a step that verifies them), ascending, from a
        plain step on.
        """
        found = self._nearest(size, "verify")
        if found is None:
            return None
        there = self.times[found[0]]
        scale = found[1]
        plain = median(there.plain)
        points = sorted(
            (drafted, max(median(seconds), plain)) for drafted, seconds in there.verify.items()
        )
        return [(drafted, scale * seconds) for drafted, seconds in [(0.0, plain), *points]]

    def draft(self, size: Size) -> float | None:
        """Seconds of drafting one token for each request."""
        return self._scaled(size, "draft")

    def select(self, size: Size) -> float:
        """Seconds of choosing new views for all requests."""
        return self._scaled(size, "select") or 0.0

    def _scaled(self, size: Size, kind: str) -> float | None:
        found = self._nearest(size, kind)
        return found and found[1] * median(getattr(self.times[found[0]], kind))

    def _nearest(self, size: Size, kind: str) -> tuple[Size, float] | None:
        """The nearest size with times of this kind, and how many times as long plain steps take
        here as there.
        """
        here = bucket(size)
        if self.times[here].plain and getattr(self.times[here], kind):
            return here, 1.0
        known = [key for key, times in self.times.items() if times.plain and getattr(times, kind)]
        if not known or not self.times[here].plain:
            return None
        there = min(known, key=lambda key: (abs(key[0] - here[0]) + abs(key[1] - here[1]), key))
        return there, self.plain(size) / median(self.times[there].plain)


def bucket(size: Size) -> Size:
    requests, context = size
    return round(log(max(requests, 1), GRAIN)), round(log(max(context, 1), GRAIN))


def per_request(size: Size, drafted: int) -> float:
    return max(round(drafted / size[0] / PART), 1) * PART


def along(points: list[tuple[float, float]], x: float) -> float:
    """The value at x of the lines through these points; beyond them, the first and the last line go
    on.
    """
    i = min(max(bisect_left(points, (x, 0.0)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1 : i + 1]
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0)
