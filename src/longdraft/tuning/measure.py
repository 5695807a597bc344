"""Times a few passes of a model and fits the terms of costs to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log
from time import perf_counter

import torch

from longdraft.costs.counts import counted, counts_of
from longdraft.costs.fit import fit, predicted
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM
from longdraft.tuning.overheads import overheads
from longdraft.tuning.workload import Shape, Workload, passes_of

BRIEF_S = 0.6  # of passes that are measured at load
BRIEF_BYTES, MOST_BYTES = 96 << 20, 2 << 30  # of keys that are allocated at load, and to measure thoroughly
ROUNDS = 8  # at load at most
WIDEST = 32  # nodes of the widest tree
FAR = 16  # what a thorough measurement fits ends at this share of the longest context: the rest is predicted


@dataclass(frozen=True)
class Timed:
    """A shape and the seconds that it took, of several turns the shortest."""

    shape: Shape
    seconds: float


@dataclass(frozen=True)
class Held:
    """A shape that costs were not fitted to, with its measured and predicted seconds."""

    shape: Shape
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted / self.measured - 1


def brief_shapes(model: LM) -> list[Shape]:
    """What is measured at load, the most telling shapes first; two contexts, one or four rows."""
    context = context_for(model, 4, BRIEF_BYTES, 4096)
    short = min(64, context)
    rows = [(1, context), (1, short), (4, short)]
    (one, long), (_, _), (many, few) = rows
    return [
        Shape(one, long),
        Shape(one, long, 8),
        Shape(one, long, 6, 0.25),
        Shape(one, short),
        Shape(many, long),
        Shape(one, short, 8),
        Shape(one, short, 6, 0.5),
        Shape(many, few, 4),
        Shape(one, long, 8, scored=True),
        Shape(one, long, 1, 0.25),
        Shape(one, long, 3),
        Shape(many, long, 4),
        Shape(one, long, 24),
        Shape(many, few, 16),
        Shape(many, long, 4, 0.25),
    ]


def thorough_shapes(model: LM, contexts: Sequence[int], most_rows: int = 8) -> tuple[list[Shape], list[Shape]]:
    """(the shapes that costs are fitted to, those held out), over these contexts and 1 to `most_rows` rows.

    Those held out have other contexts, rows and nodes, each of them within or beyond the range of the others.
    """
    longest = max(contexts)
    fitted, held = [], []
    for context in sorted({max(64, longest // 128), max(64, longest // 12), max(64, longest // 3)}):
        for rows in (1, 2, 8):
            if not fits(model, rows, context) or rows > most_rows:
                continue
            fitted += [Shape(rows, context, nodes) for nodes in (1, 2, 3, 6, 12, 28)]
            fitted += [Shape(rows, context, nodes, scored=True) for nodes in (1, 6)]
            fitted += [Shape(rows, context, nodes, share) for nodes, share in ((1, 0.1), (8, 0.1), (5, 0.4))]
    for context in contexts:
        for rows in (1, 4, 8):
            if not fits(model, rows, context) or rows > most_rows:
                continue
            held += [Shape(rows, context, nodes) for nodes in (1, 2, 4, 8, 16, WIDEST)]
            held += [Shape(rows, context, 8, scored=True)]
            held += [Shape(rows, context, nodes, share) for nodes, share in ((4, 0.07), (7, 0.3))]
    return fitted, held


def slot_bytes(model: LM) -> int:
    """Bytes of one slot in all layers."""
    return sum(kind.layers * kind.slot for kind in counts_of(model).keys)


def context_for(model: LM, rows: int, room: int, most: int) -> int:
    """The longest context of up to `most` slots of which `rows` rows fit into `room` bytes and the model."""
    longest = min(most, model.positions - WIDEST - 1, model.architecture.longest or most)
    return max(16, min(longest, room // max(rows * slot_bytes(model), 1)))


def fits(model: LM, rows: int, context: int) -> bool:
    return context_for(model, rows, MOST_BYTES, context) >= context


def time_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, with the work that it has queued on a GPU."""
    begin = perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - begin


def measured_briefly(model: LM, seconds: float = BRIEF_S) -> PassCosts | None:
    """Costs from passes of this much time in total; None if the model is too slow for that.

    Terms that there was no time to measure are those of `counted`, scaled by the passes that were measured.
    """
    begin = perf_counter()
    start = counted(model)
    shapes = brief_shapes(model)
    largest = max(shapes, key=lambda s: s.rows * s.context)
    if predicted(start, passes_of(model, shapes[0])) > seconds:
        return None
    work = Workload(model, max(s.rows for s in shapes), largest.context)
    times: dict[Shape, list[float]] = {}
    calls, slower = {}, 1.0  # how much slower the machine is than `start` says
    for turn in range(ROUNDS):
        for shape in shapes:
            usual = min(times[shape]) if shape in times else slower * predicted(start, passes_of(model, shape))
            left = seconds - (perf_counter() - begin)
            if usual * (2 if turn == 0 else 1) > left:
                continue
            if turn == 0:
                calls[shape] = work.timed(shape)
                calls[shape]()
                times[shape] = []
            elif shape not in calls:
                continue
            times[shape].append(time_of(calls[shape], model.device))
            if turn == 0:
                slower = max(times[shape][0] / predicted(start, passes_of(model, shape)), slower * 0.5)
    if not times:
        return None
    costs = fit([(passes_of(model, shape), min(t)) for shape, t in times.items()], start)
    return replace(costs, **overheads(model, work, Shape(1, shapes[0].context), costs))


def measured(
    model: LM, shapes: Sequence[Shape], repeat: int = 5, tick: Callable[[str], None] = lambda name: None
) -> list[Timed]:
    """Each shape's shortest time of `repeat` turns; the shapes of one cache take turns, so that all see the same
    machine."""
    found = []
    for rows, context in sorted({(s.rows, s.context) for s in shapes}, key=lambda pair: pair[0] * pair[1]):
        own = [s for s in shapes if (s.rows, s.context) == (rows, context)]
        work = Workload(model, rows, context)
        calls = {shape: work.timed(shape) for shape in own}
        for _ in range(2):  # on a GPU the first pass of a shape builds kernels, and the second one its graph
            for call in calls.values():
                call()
        times: dict[Shape, list[float]] = {shape: [] for shape in own}
        for _ in range(repeat):
            for shape, call in calls.items():
                times[shape].append(time_of(call, model.device))
        for shape in own:
            found.append(Timed(shape, min(times[shape])))
            tick(f"{rows} x {context}")
        del work, calls
    return found


def fitted(model: LM, timed: Sequence[Timed]) -> PassCosts:
    """The costs that explain these times."""
    costs = fit([(passes_of(model, t.shape), t.seconds) for t in timed], counted(model))
    longest = max((t.shape for t in timed if t.shape.rows == 1), key=lambda s: s.context)
    with suppress(MemoryError):
        work = Workload(model, 1, longest.context)
        costs = replace(costs, **overheads(model, work, Shape(1, longest.context), costs))
    return costs


def held_out(model: LM, costs: PassCosts, timed: Sequence[Timed]) -> list[Held]:
    """What these costs predict of times that they were not fitted to."""
    return [Held(t.shape, t.seconds, predicted(costs, passes_of(model, t.shape))) for t in timed]


def quantiles(held: Sequence[Held]) -> tuple[float, float]:
    """The median of the errors, whatever their sign, and what nine of ten do not exceed."""
    errors = sorted(abs(h.error) for h in held)
    return errors[(len(errors) - 1) // 2], errors[min(int(0.9 * len(errors)), len(errors) - 1)]


def bias(held: Sequence[Held]) -> float:
    """The mean of log(predicted/measured): 0 without a systematic error."""
    return sum(log(h.predicted / h.measured) for h in held) / len(held)
