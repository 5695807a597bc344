"""Terms that fit measured passes: Gauss-Newton steps on the logarithms of terms and times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from longdraft.costs.passes import Pass, PassCosts

Point = tuple[Pass | Sequence[Pass], float]  # a pass, or several in one call, and the seconds that it took

TERMS = ("call", "chained", "read", "multiply", "key", "attend", "row", "node", "score", "draw")
LEAST = {"call": 1e-7, "chained": 1e-8, "row": 1e-9, "node": 1e-9}  # of terms that are 0 at the start; others: 1e-15
PULL = 3e-3  # weight of a term's distance from the start (in logarithms, squared) beside all points together
ODD = 0.1  # a point that is off by this much (in logarithms) counts half
TURNS, STEP = 25, 1.0  # at most so many steps, each of which changes a term by a factor of e at most
SMALL = 1e-6  # of a term in logarithms, to differentiate by


def predicted(costs: PassCosts, passes: Pass | Sequence[Pass]) -> float:
    """Seconds of a pass, or of several in one call."""
    return costs.seconds(passes) if isinstance(passes, Pass) else sum(map(costs.seconds, passes))


def fit(points: Sequence[Point], start: PassCosts) -> PassCosts:
    """The terms of passes that best explain the points, in relative error; terms that no point shows stay at `start`.

    A few points that are far off, as beside a busy process, count little. Terms stay positive. Raises ValueError for a
    time that is not positive.
    """
    if not points:
        return start
    if not all(0 < seconds < math.inf for _, seconds in points):
        raise ValueError("a measured time is not positive")
    first = [math.log(max(getattr(start, name), LEAST.get(name, 1e-15))) for name in TERMS]
    # all times may be off by one factor, as on a machine that is faster: that is no reason to be pulled back
    off = sorted(math.log(seconds / max(predicted(start, p), 1e-12)) for p, seconds in points)[len(points) // 2]
    first = [x + off for x in first]
    best, least = first, math.inf
    at = first
    for _ in range(TURNS):
        loss, step = _step(points, start, at, first)
        if loss < least * (1 - 1e-5):
            best, least, at = at, loss, [x + d for x, d in zip(at, step, strict=True)]
        elif least < math.inf and max(abs(a - b) for a, b in zip(at, best, strict=True)) > 1e-3:
            at = [(a + b) / 2 for a, b in zip(at, best, strict=True)]  # the step was too long
        else:
            break
    return _costs(start, best)


def _costs(start: PassCosts, logs: Sequence[float]) -> PassCosts:
    return replace(start, **{name: math.exp(x) for name, x in zip(TERMS, logs, strict=True)})


def _step(
    points: Sequence[Point], start: PassCosts, at: Sequence[float], first: Sequence[float]
) -> tuple[float, list[float]]:
    """The loss at these logarithms of terms, and the step from there."""
    near = [_costs(start, at), *(_costs(start, [*at[:i], x + SMALL, *at[i + 1 :]]) for i, x in enumerate(at))]
    logs = torch.tensor([[math.log(predicted(c, p)) for c in near] for p, _ in points], dtype=torch.float64)
    error = logs[:, 0] - torch.tensor([math.log(seconds) for _, seconds in points], dtype=torch.float64)
    slopes = (logs[:, 1:] - logs[:, :1]) / SMALL
    weight = 1 / (1 + (error / ODD) ** 2)
    moved = torch.tensor([a - b for a, b in zip(at, first, strict=True)], dtype=torch.float64)
    pull = PULL * len(points)
    loss = float((ODD**2 * (1 + (error / ODD) ** 2).log()).sum() + pull * ODD * (moved**2).sum())
    matrix = slopes.T @ (slopes * weight[:, None]) + pull * ODD * torch.eye(len(TERMS), dtype=torch.float64)
    step = torch.linalg.solve(matrix, -(slopes.T @ (weight * error) + pull * ODD * moved))
    return loss, step.clamp(-STEP, STEP).tolist()
