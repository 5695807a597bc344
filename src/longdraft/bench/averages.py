"""Means with standard errors, for anchors that are not independent within a window."""

from __future__ import annotations

from statistics import fmean, stdev

FEWEST = 5  # windows that a clustered error needs


def mean_and_errors(
    windows: list[list[float]] | list[list[int]],
) -> tuple[float, float | None, float | None]:
    """Mean of all values, its standard error, and that error clustered by window; None if there are
    too few.
    """
    values = [x for w in windows for x in w]
    if not values:
        return 0.0, None, None
    mean = fmean(values)
    n = len(values)
    W = len(windows)
    simple = stdev(values) / n**0.5 if n > 1 else None
    sums = [sum(x - mean for x in w) for w in windows]
    clustered = (W / (W - 1) * sum(s * s for s in sums)) ** 0.5 / n if W >= FEWEST else None
    return mean, simple, clustered


def paired(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    """Differences at the same anchors, by window."""
    return [[x - y for x, y in zip(u, v, strict=True)] for u, v in zip(a, b, strict=True)]
