"""Predicted times of a step and the speedup that follows, by method, rows and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longdraft.bench.plan.acceptance import Acceptance
from longdraft.bench.plan.candidates import Candidate
from longdraft.bench.plan.drafts import Place, breadth, passes, shape
from longdraft.bench.plan.outlines import Target
from longdraft.costs.counts import pass_over
from longdraft.drafters.adaptive.constants import DEFAULTS
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
    plain = plain_step(target, [context] * rows)
    label = candidate.spec.label
    lacking = candidate.lacking
    origin = acceptance.origin

    def shaped(depth: int, width: int) -> Prediction:
        count = sum(shape(drafter, depth, width))
        tokens = acceptance.tokens(breadth(drafter, depth, width))
        times = _step(target, candidate, [context] * rows, depth, width)
        return Prediction(label, context, depth, count, *times, plain, tokens, origin, lacking)

    shapes = [
        (depth, width)
        for depth in _depths(drafter.max_depth)
        for width in (DEFAULTS.widths, DEFAULTS.widths[-1:])[drafter.is_chain]
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


def _step(
    target: Target, candidate: Candidate, lengths: list[int], depth: int, width: int
) -> tuple[float, float, float]:
    """Seconds of the draft, of verifying it, and of the whole step."""
    drafter = candidate.drafter
    costs = target.costs
    place = Place(target, lengths, candidate.copy)
    draft = sum(p.seconds(costs) for p in passes(drafter, place, depth, width))
    count = sum(shape(drafter, depth, width))
    spec = drafter.captures()
    verify = costs.seconds(pass_over(target.counts, lengths, 1 + count))
    if spec.rows is not None and (share := _captured(drafter)):
        chosen = pass_over(target.counts, lengths, 1 + count, scored=spec, chosen=spec.only is None)
        verify += share * (costs.seconds(chosen) - verify)
    walked = 0.0 if drafter.is_chain else len(lengths) * count * costs.tree
    return draft, verify, draft + verify + walked + costs.step


def _captured(drafter: Any) -> float:
    """The share of verifications that keep scores and choose a view."""
    policy = getattr(getattr(drafter, "drafters", [drafter])[0], "policy", None)
    if isinstance(policy, Partial):
        return 0.0  # once in thousands of tokens
    return 1 / policy.every if isinstance(policy, Retrieval) else 1.0
