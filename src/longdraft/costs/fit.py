"""Terms that fit measured passes: Gauss-Newton steps on the logarithms of terms and times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longdraft.costs.passes import Pass, PassCosts

# a pass, or several in one call, and the seconds that it took
Point = tuple[Pass | Sequence[Pass], float]

TERMS = ("call", "chained", "read", "multiply", "key", "attend", "row", "node", "score", "draw")
# of terms that are 0 at the start; others: 1e-15
LEAST = {
    "call": 1e-7,
    "chained": 1e-8,
    "row": 1e-9,
    "node": 1e-9,
}
# weight of a term's distance from the start (in logarithms, squared), where a calm point has 1
PULL = 2e-3
# a point that is off by this much (in logarithms) counts half: first few points are odd
ODD = (3.0, 0.5, 0.1)
# at most this many steps for each, in which no term changes by more than this (in logarithms)
TURNS = 30
STEP = 1.5
SMALL = 1e-6  # of a term in logarithms, to differentiate by


def predicted(costs: PassCosts, passes: Pass | Sequence[Pass]) -> float:
    """Seconds of a pass, or of several in one call."""
    return costs.seconds(passes) if isinstance(passes, Pass) else sum(map(costs.seconds, passes))


def fit(
    points: Sequence[Point], start: PassCosts, weights: Sequence[float] | None = None
) -> PassCosts:
    """The terms of passes that best explain the points, in relative error.

    Terms that no point shows stay at `start`. A few points that are far off, as beside a busy
    process, count little. weights: of each point (None: 1). Terms stay positive. Raises ValueError
    for a time that is not positive.
    """
    if not points:
        return start
    if not all(0 < seconds < math.inf for _, seconds in points):
        raise ValueError("a measured time is not positive")
    weights = [1.0] * len(points) if weights is None else weights
    first = [math.log(max(getattr(start, name), LEAST.get(name, 1e-15))) for name in TERMS]
    # all times may be off by one factor, as on a faster machine, which must not pull terms back
    offs = [math.log(seconds / max(predicted(start, p), 1e-12)) for p, seconds in points]
    off = sum(w * x for w, x in zip(weights, offs, strict=True)) / sum(weights)
    first = [log + off for log in first]
    best = first
    for odd in ODD:
        best = _descend(_Problem(points, weights, start, first, odd), best)
    return _costs(start, best)


def _descend(problem: _Problem, logs: list[float]) -> list[float]:
    """The best logarithms of terms that Levenberg-Marquardt steps reach from these."""
    damping = 1e-2
    least, matrix, slope = problem.at(logs)
    for _ in range(TURNS):
        step = torch.linalg.solve(matrix + damping * torch.diag(matrix.diagonal()), -slope)
        step *= min(1.0, STEP / max(float(step.abs().max()), 1e-12))
        moved = [log + change for log, change in zip(logs, step.tolist(), strict=True)]
        tried = problem.at(moved)
        if tried[0] < least:
            done = least - tried[0] < 1e-4 * least
            logs = moved
            least, matrix, slope = tried
            damping /= 4
            if done:
                break
        elif damping > 1e3:
            break
        else:
            damping *= 8
    return logs


def _costs(start: PassCosts, logs: Sequence[float]) -> PassCosts:
    return replace(start, **{name: math.exp(x) for name, x in zip(TERMS, logs, strict=True)})


@dataclass(frozen=True)
class _Problem:
    """The measured points, and the loss of terms that explain them.

    weights: of the points. first: logarithms of the start. odd: the error from which on a point
    counts little.
    """

    points: Sequence[Point]
    weights: Sequence[float]
    start: PassCosts
    first: Sequence[float]
    odd: float

    def at(self, logs: Sequence[float]) -> tuple[float, Tensor, Tensor]:
        """The loss at these logarithms, with its approximate second and its first derivatives."""
        near = [_costs(self.start, logs)]
        for i, log in enumerate(logs):
            near.append(_costs(self.start, [*logs[:i], log + SMALL, *logs[i + 1 :]]))
        explained = torch.tensor(
            [[math.log(predicted(costs, passes)) for costs in near] for passes, _ in self.points],
            dtype=torch.float64,
        )
        measured = [math.log(seconds) for _, seconds in self.points]
        error = explained[:, 0] - torch.tensor(measured, dtype=torch.float64)
        slopes = (explained[:, 1:] - explained[:, :1]) / SMALL
        own = torch.tensor(self.weights, dtype=torch.float64)
        weight = own / (1 + (error / self.odd) ** 2)
        moved = torch.tensor(
            [a - b for a, b in zip(logs, self.first, strict=True)], dtype=torch.float64
        )
        loss = float(
            (own * self.odd**2 * torch.log1p((error / self.odd) ** 2)).sum()
            + PULL * (moved**2).sum()
        )
        matrix = slopes.T @ (slopes * weight[:, None]) + PULL * torch.eye(
            len(TERMS), dtype=torch.float64
        )
        return loss, matrix, slopes.T @ (weight * error) + PULL * moved
