"""By how much the predictions of one part of a step are wrong, as measured."""

from __future__ import annotations

from math import log2

WIDEST = 6  # the logarithm of the most nodes that have a correction of their own
NEAR = 2.0  # doublings of the nodes at which a measurement counts half as much


class Correction:
    """The logarithm of measured over predicted seconds, by the number of nodes in a pass.

    A measurement moves the correction most for passes as wide as its own, and for others the less
    the more they differ: the arithmetic of wide passes may be off where that of narrow ones is not.
    """

    def __init__(self) -> None:
        self._off = [0.0] * (WIDEST + 1)  # for 1, 2, 4, .. nodes
        self._seen = [0.0] * (WIDEST + 1)

    def at(self, nodes: int) -> float:
        """For a pass over this many nodes."""
        return _between(self._off, nodes)

    def seen(self, nodes: int) -> float:
        """How many measurements of such passes it is based on."""
        return _between(self._seen, nodes)

    def move(self, nodes: int, by: float, most: float) -> None:
        """Add this much for passes over this many nodes. most: the largest correction."""
        place = min(log2(nodes), WIDEST)
        for i, off in enumerate(self._off):
            share = 0.5 ** (abs(i - place) / NEAR)
            self._off[i] = min(max(off + share * by, -most), most)
            self._seen[i] += share


def _between(values: list[float], nodes: int) -> float:
    place = min(log2(nodes), WIDEST)
    low = min(int(place), WIDEST - 1)
    return values[low] + (values[low + 1] - values[low]) * (place - low)
