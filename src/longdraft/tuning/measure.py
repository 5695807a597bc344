"""Times a few passes of a model and fits the terms of costs to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, log
from time import perf_counter

from longdraft.costs.counts import counted, counts_of
from longdraft.costs.fit import fit, predicted
from longdraft.costs.passes import PassCosts
from longdraft.models.lm import LM
from longdraft.tuning.overheads import overheads
from longdraft.tuning.stopwatch import CallTime, shortest, turn
from longdraft.tuning.workload import ROOM, PassShape, Workload, passes_of

BRIEF_S = 0.6  # of passes that are measured at load
# of keys that are allocated at load, and to measure thoroughly
BRIEF_BYTES = 48 << 20
MOST_BYTES = 2 << 30
BRIEF_CONTEXT = 8192  # slots of a row at load, at most
ROUNDS = 8  # at load at most
WIDEST = 32  # nodes of the widest tree
PATIENCE = 4  # calls of a turn at most, until one had its processors
DISTURBED = 0.02  # weight of a shape that never had its processors
PLAIN = 4.0  # weight of a plain pass
WARMING = 0.3  # share of the time in which every shape runs for the first time


@dataclass(frozen=True)
class Timed:
    """A shape and the seconds of its shortest turn.

    calm: whether it had its processors.
    """

    shape: PassShape
    seconds: float
    calm: bool = True


@dataclass(frozen=True)
class Held:
    """A shape that costs were not fitted to, with its measured and predicted seconds."""

    shape: PassShape
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The relative error, of the measured time."""
        return self.predicted / self.measured - 1


def brief_shapes(model: LM) -> list[PassShape]:
    """The shapes that are measured at load, the most telling ones first.

    One row of a long and of a short context, and four rows.
    """
    long = context_for(model, 1, BRIEF_BYTES, BRIEF_CONTEXT)
    short = min(64, long)
    few = max(16, long // 16)
    return [
        PassShape(1, long),
        PassShape(1, long, 8),
        PassShape(1, long, 6, 0.25),
        PassShape(1, short),
        PassShape(4, few),
        PassShape(1, short, 8),
        PassShape(1, short, 6, 0.5),
        PassShape(4, few, 4),
        PassShape(1, long, 8, scored=True),
        PassShape(1, long, 1, 0.25),
        PassShape(1, long, 3),
        PassShape(4, few, 16),
        PassShape(1, long, 24),
        PassShape(4, few, 4, 0.25),
    ]


def thorough_shapes(
    model: LM, contexts: Sequence[int], most_rows: int = 8, room: int = MOST_BYTES
) -> tuple[list[PassShape], list[PassShape]]:
    """The shapes that costs are fitted to, and those held out.

    Over these contexts and 1 to `most_rows` rows. Those held out have other contexts, rows and
    nodes, up to three times the longest context of the others.
    """
    longest, shared = (context_for(model, rows, room, max(contexts)) for rows in (1, most_rows))
    fitted = []
    held = []
    for context in sorted({max(64, longest // n) for n in (128, 12, 3)}):
        for rows in (1, 2, 8):
            if rows <= most_rows and (rows == 1 or context <= shared):
                fitted += [PassShape(rows, context, nodes) for nodes in (1, 2, 3, 6, 12, 28)]
                fitted += [PassShape(rows, context, nodes, scored=True) for nodes in (1, 6)]
                fitted += [
                    PassShape(rows, context, nodes, share)
                    for nodes, share in ((1, 0.1), (8, 0.1), (5, 0.4))
                ]
    for context in sorted({min(context, longest) for context in contexts}):
        for rows in (1, 4, 8):
            if rows <= most_rows and (rows == 1 or context <= shared):
                held += [PassShape(rows, context, nodes) for nodes in (1, 2, 4, 8, 16, WIDEST)]
                held += [PassShape(rows, context, 8, scored=True)]
                held += [
                    PassShape(rows, context, nodes, share) for nodes, share in ((4, 0.07), (7, 0.3))
                ]
    return fitted, [s for s in held if s not in fitted]


def slot_bytes(model: LM) -> int:
    """Bytes of one slot in all layers."""
    return sum(kind.layers * kind.slot for kind in counts_of(model).keys)


def context_for(model: LM, rows: int, room: int, most: int) -> int:
    """The longest context, up to `most` slots, of which `rows` rows fit into `room` bytes.

    The model's own limit counts too.
    """
    longest = min(most, (model.architecture.longest or most + ROOM) - ROOM)
    return max(16, min(longest, room // max(rows * slot_bytes(model), 1)))


def measured_briefly(model: LM, seconds: float = BRIEF_S) -> PassCosts | None:
    """Costs from passes of this much time in total; None if the model is too slow for that.

    Terms that there was no time to measure are those of `counted`, scaled by the passes that were
    measured.
    """
    begin = perf_counter()
    start = counted(model)
    shapes = brief_shapes(model)
    if 2 * predicted(start, passes_of(model, shapes[0])) > seconds:
        return None
    works: dict[int, Workload] = {}
    turns: dict[PassShape, list[CallTime]] = {}
    calls = {}
    slower = 1.0  # the measured time as a multiple of what `start` predicts
    for shape in shapes:
        usual = slower * predicted(start, passes_of(model, shape))
        if not calls or 2 * usual <= seconds - (perf_counter() - begin):
            if shape.rows not in works:
                works[shape.rows] = Workload(
                    model, shape.rows, max(s.context for s in shapes if s.rows == shape.rows)
                )
            calls[shape] = works[shape.rows].timed(shape)
            calls[shape]()  # the first call of a shape allocates, and does not count
            turns[shape] = [turn(calls[shape], model.device)]
            slower = max(
                turns[shape][0].seconds / predicted(start, passes_of(model, shape)), slower / 2
            )
    for _ in range(ROUNDS):
        for shape, call in calls.items():
            if shortest(turns[shape]) <= seconds - (perf_counter() - begin):
                turns[shape].append(turn(call, model.device))
    timed = [
        Timed(shape, shortest(taken), any(t.calm for t in taken)) for shape, taken in turns.items()
    ]
    costs = terms_of(model, timed)
    return replace(costs, **overheads(model, works[1], PassShape(1, shapes[0].context)))


def measured(
    model: LM,
    shapes: Sequence[PassShape],
    repeat: int = 8,
    seconds: float = inf,
    tick: Callable[[str], None] = lambda name: None,
) -> list[Timed]:
    """Each shape's shortest time of `repeat` turns.

    All shapes take turns, because a machine's speed changes.
    In this many `seconds` about: the most expensive shapes, then turns, are left out. tick: called
    after every turn.
    """
    begin = perf_counter()
    costs = counted(model)
    works = {
        many: works_of(model, [s for s in shapes if (s.rows > 1) == many]) for many in (False, True)
    }
    calls: dict[PassShape, Callable[[], object]] = {}
    for shape in sorted(shapes, key=lambda s: predicted(costs, passes_of(model, s))):
        work = works[shape.rows > 1]
        if work is None or (calls and perf_counter() - begin > WARMING * seconds):
            continue
        calls[shape] = work.timed(shape)
        # on a GPU the first pass of a shape builds kernels, and the second one its graph
        for _ in range(2):
            calls[shape]()
    turns: dict[PassShape, list[CallTime]] = {shape: [] for shape in calls}
    for n in range(repeat):
        for shape, call in calls.items():
            for again in range(PATIENCE):
                if (n or again) and perf_counter() - begin > seconds:
                    break
                turns[shape].append(turn(call, model.device))
                if turns[shape][-1].calm:
                    break
            tick(shape.name)
    return [
        Timed(shape, shortest(taken), any(t.calm for t in taken)) for shape, taken in turns.items()
    ]


def works_of(model: LM, shapes: Sequence[PassShape]) -> Workload | None:
    """A cache for all of these shapes; None without any."""
    if not shapes:
        return None
    return Workload(model, max(s.rows for s in shapes), max(s.context for s in shapes))


def terms_of(model: LM, timed: Sequence[Timed]) -> PassCosts:
    """The terms of passes that explain these times; the start is `counted`.

    Plain passes weigh more, because drafting is compared with them.
    """
    weights = list[float]()
    for t in timed:
        weight = PLAIN if t.shape.name == "plain" else 1.0
        weights.append(weight if t.calm else weight * DISTURBED)
    return fit([(passes_of(model, t.shape), t.seconds) for t in timed], counted(model), weights)


def fitted(model: LM, timed: Sequence[Timed]) -> PassCosts:
    """The costs that explain these times."""
    costs = terms_of(model, timed)
    longest = max((t.shape for t in timed if t.shape.rows == 1), key=lambda s: s.context)
    with suppress(MemoryError):
        work = Workload(model, 1, longest.context)
        costs = replace(costs, **overheads(model, work, PassShape(1, longest.context)))
    return costs


def held_out(model: LM, costs: PassCosts, timed: Sequence[Timed]) -> list[Held]:
    """Measured times that these costs were not fitted to, with their predictions."""
    return [Held(t.shape, t.seconds, predicted(costs, passes_of(model, t.shape))) for t in timed]


def quantiles(held: Sequence[Held]) -> tuple[float, float]:
    """The median of the absolute errors, and the bound that nine of ten do not exceed."""
    errors = sorted(abs(h.error) for h in held)
    return errors[(len(errors) - 1) // 2], errors[min(int(0.9 * len(errors)), len(errors) - 1)]


def bias(held: Sequence[Held]) -> float:
    """The mean of log(predicted/measured): 0 without a systematic error."""
    return sum(log(h.predicted / h.measured) for h in held) / len(held)
