"""Predicted times of a step and the speedup that follows, by method, rows and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longdraft.bench.plan.acceptance import Acceptance
from longdraft.bench.plan.candidates import Candidate
from longdraft.bench.plan.outlines import Target
from longdraft.costs.counts import pass_over
from longdraft.drafters.adaptive.acceptance import WIDTHS
from longdraft.drafters.base import Drafter
from longdraft.drafters.price import DraftPrice, Lengths, PlannedMachine
from longdraft.views import Partial, Retrieval

EVERY = 16  # beyond this, only some depths are compared: a draft so deep seldom pays


@dataclass(frozen=True)
class Prediction:
    """One method's step. Times are in seconds, of all rows together; tokens are per row.

    depth, nodes: of the draft that promises the highest speedup, of a row. draft, verify, step:
    what they take; step has the engine's part too. plain: a step without a draft. tokens: expected
    per step. origin: of the acceptance. lacking: the kind of drafter weights that the method needs
    and that are not there.
    """

    label: str
    context: int
    depth: int
    nodes: int
    draft: float
    verify: float
    step: float
    plain: float
    tokens: float
    origin: str
    lacking: str | None

    @property
    def break_even(self) -> float:
        """Tokens per step at which it is as fast as plain decoding."""
        return self.step / self.plain

    @property
    def speedup(self) -> float:
        return self.tokens / self.break_even

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"break_even": self.break_even, "speedup": self.speedup}


def plain_step(target: Target, lengths: list[int]) -> float:
    """Seconds of a step without a draft."""
    return target.costs.seconds(pass_over(target.counts, lengths, 1)) + target.costs.step


def predicted(
    target: Target, candidate: Candidate, rows: int, context: int, acceptance: Acceptance
) -> Prediction:
    """With the depth and width of draft that promise the highest speedup, as adaptive drafting
    would choose it.
    """
    drafter = candidate.drafter
    price = price_on(target, candidate)
    plain = plain_step(target, [context] * rows)
    label = candidate.spec.label
    lacking = candidate.lacking
    origin = acceptance.origin

    def shaped(depth: int, width: int) -> Prediction:
        nodes = price.nodes(depth, width)
        tokens = acceptance.tokens(price.breadth(depth, width))
        lengths = Lengths([context] * rows)
        draft = price.seconds(target.costs, lengths, depth, width)
        verify = _verification(target, drafter, lengths, nodes)
        step = draft + verify + target.costs.step
        return Prediction(
            label, context, depth, nodes, draft, verify, step, plain, tokens, origin, lacking
        )

    shapes = [
        (depth, width)
        for depth in _depths(drafter.max_depth)
        for width in (WIDTHS, WIDTHS[-1:])[drafter.is_chain]
    ]
    return max((shaped(*s) for s in shapes), key=lambda p: (p.speedup, -p.nodes))


def ranked(
    target: Target,
    candidates: Sequence[Candidate],
    rows: int,
    context: int,
    acceptance: Callable[[Candidate, int], Acceptance],
) -> list[Prediction]:
    """A prediction per candidate, the highest speedup first."""
    found = [predicted(target, c, rows, context, acceptance(c, context)) for c in candidates]
    return sorted(found, key=lambda p: -p.speedup)


def _depths(most: int) -> list[int]:
    """1 to EVERY, then steps of a quarter."""
    depths = list(range(1, min(most, EVERY) + 1))
    while depths[-1] < most:
        depths.append(min(most, depths[-1] + depths[-1] // 4))
    return depths


def price_on(target: Target, candidate: Candidate) -> DraftPrice:
    """The price by which the candidate's drafter would decide in a run there."""
    machine = PlannedMachine(target.counts, candidate.copy, compiled=target.chains)
    return candidate.drafter.price().planned(machine)


def _verification(target: Target, drafter: Drafter, lengths: Lengths, nodes: int) -> float:
    """Seconds of the pass that verifies so many drafted nodes of each row."""
    spec = drafter.captures()
    work = pass_over(target.counts, lengths.slots, 1 + nodes)
    seconds = target.costs.seconds(work)
    if spec.rows is not None and (share := _captured(drafter)):
        chosen = pass_over(
            target.counts, lengths.slots, 1 + nodes, scored=spec, chosen=spec.only is None
        )
        seconds += share * (target.costs.seconds(chosen) - seconds)
    return seconds


def _captured(drafter: Any) -> float:
    """The share of verifications that keep scores and choose a view."""
    policy = getattr(getattr(drafter, "drafters", [drafter])[0], "policy", None)
    if isinstance(policy, Partial):
        return 0.0  # once in thousands of tokens
    return 1 / policy.every if isinstance(policy, Retrieval) else 1.0
