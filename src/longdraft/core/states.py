"""States of recurrent layers beside the keys of a cache.

Settled states, and the inputs of later slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from torch import Tensor

Inputs = tuple[Tensor, ...]  # [T,..] each: what a recurrence reads of T tokens
# a state for each scan of a pass, numbered in the order of the model; none of new rows
ByScan = Mapping[int, Tensor]

RECENT = 32  # a row can be rewound by as many tokens without a checkpoint
# checkpoints of a row, and what they may take
MAX_CHECKPOINTS = 32
MOST_BYTES = 1 << 30
ROOM = 96  # slots of inputs that are allocated at least


class Recurrence(Protocol):
    """The step from one state to the next, always one token after the other, in float32.

    The order is the same in all passes.
    """

    def replay(self, state: Tensor | None, inputs: Inputs) -> Tensor:
        """The state after these tokens; state None: they are the first ones."""
        ...


@dataclass
class RowStates:
    """The states of one row after its first `position` tokens, and the inputs of slots [low, high).

    A pass writes inputs to scratch and never changes a state; what is committed later is replayed
    onto the states by the next pass (`stops`, `advance`) or without one (`settle`), in the order
    and arithmetic in which passes run. So rollback is nothing, and a state is one tensor that rows
    and checkpoints share: it is replaced, not written to.

    floor: the states stay at this position or before it, None: they follow the committed length.
    tip: the states that the latest pass ended with, if it was a chain, and their position.
    before_tip: of a long pass, the states behind which inputs were kept. recent: at most two
    earlier states, so that inputs reach back by RECENT tokens.
    checkpoints {position: states}, at multiples of `every` (0: none).
    """

    position: int = 0
    states: ByScan = field(default_factory=dict)
    floor: int | None = None
    every: int = 0
    tip: tuple[int, ByScan] | None = None
    before_tip: tuple[int, ByScan] | None = None
    recent: list[tuple[int, ByScan]] = field(default_factory=list)
    checkpoints: dict[int, ByScan] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    # buffers [room,..], whose first entry is of slot `low`
    _inputs: dict[int, Inputs] = field(default_factory=dict)

    def settle(self, length: int, recurrences: Mapping[int, Recurrence]) -> None:
        """Replay what was committed onto the states, up to `length` tokens, or to the floor."""
        self.adopt(length, recurrences)
        self._replay(self.stops(length), recurrences)

    def adopt(self, length: int, recurrences: Mapping[int, Recurrence]) -> None:
        """Take the states that the latest pass ended with, if they are states of committed tokens.

        That is of the first `length` tokens or of fewer, or of the first tokens up to the floor.
        Raises ValueError if the row was shortened otherwise than by `rewound`.
        """
        if length < self.position:
            raise ValueError(
                f"a row of {length} tokens has the states of {self.position}: shorten it "
                "by truncate"
            )
        target = self._target(length)
        if self.before_tip is not None and self.position < self.before_tip[0] <= target:
            self.advance(*self.before_tip)
        if self.tip is not None and self.position < self.tip[0] <= target:
            self._replay([n for n in self.stops(self.tip[0]) if n < self.tip[0]], recurrences)
            self.advance(*self.tip)
        self.tip = None
        self.before_tip = None

    def stops(self, length: int) -> list[int]:
        """The token counts whose states are to be kept on the way to `length` or the floor.

        These are the checkpoints' borders, and the end of the way.
        """
        target = self._target(length)
        every = self.every
        borders = range((self.position // every + 1) * every, target, every) if every else ()
        return [*borders, *[target] * (target > self.position)]

    def _target(self, length: int) -> int:
        return length if self.floor is None else min(length, self.floor)

    def _replay(self, stops: list[int], recurrences: Mapping[int, Recurrence]) -> None:
        for end in stops:
            begin = self.position
            before = self.states
            self.advance(
                end,
                {
                    n: r.replay(before.get(n), self.inputs(n, begin, end))
                    for n, r in recurrences.items()
                },
            )

    def advance(self, position: int, states: ByScan) -> None:
        """The states after the first `position` tokens are these."""
        if not self.recent or self.position - self.recent[-1][0] >= RECENT:
            self.recent = [*self.recent[-1:], (self.position, self.states)]
        self.position = position
        self.states = states
        if self.every and position % self.every == 0:
            self.checkpoints[position] = states
            if len(self.checkpoints) > max(
                2, min(MAX_CHECKPOINTS, MOST_BYTES // max(self.nbytes(), 1))
            ):
                # every second one goes, so that they reach back as far
                self.checkpoints = {
                    n: s for n, s in self.checkpoints.items() if n // self.every % 2 == 0
                }
                self.every *= 2

    def open(self, begin: int, end: int, left_out: int = 0) -> None:
        """Make room for the inputs of slots [begin, end), which a pass is about to write.

        The first `left_out` are not kept.
        Earlier inputs are forgotten where these do not follow them: slots between the two hold
        those of refused nodes, or of a text that the row has left.
        """
        if left_out or not self.low <= begin <= self.high:
            begin += left_out
            self.low = begin
            self._inputs = {}
        needed = min(self.position, self.recent[0][0] if self.recent else 0, begin)
        if end - self.low > ROOM and (gone := needed - self.low) > 0:
            for buffers in self._inputs.values():
                for x in buffers:
                    x[: self.high - needed] = x[gone : self.high - self.low].clone()
            self.low = needed
        self.high = end

    def write(self, scan: int, inputs: Inputs, begin: int) -> None:
        """Store inputs [T,..] of the slots from `begin` on, which `open` has made room for."""
        buffers = self._inputs.get(scan)
        size = self.high - self.low
        if buffers is None or len(buffers[0]) < size:
            room = max(ROOM, size + size // 4)
            new = tuple(x.new_zeros(room, *x.shape[1:]) for x in inputs)
            for to, old in zip(new, buffers or (), strict=False):
                to[: len(old)] = old
            buffers = new
            self._inputs[scan] = new
        for to, x in zip(buffers, inputs, strict=True):
            to[begin - self.low : begin - self.low + len(x)] = x

    def inputs(self, scan: int, begin: int, end: int) -> Inputs:
        """The inputs of slots [begin, end), over the same memory.

        Raises ValueError where they were not kept.
        """
        if begin < end and not (self.low <= begin and end <= self.high):
            kept = f"those of [{self.low}, {self.high}) are kept"
            raise ValueError(
                f"the inputs of slots [{begin}, {end}) are needed and {kept}: a long pass "
                "is kept whole"
            )
        return tuple(x[begin - self.low : end - self.low] for x in self._inputs[scan])

    def compact(self, start: int, path: Tensor) -> None:
        """Move the inputs of nodes path [n] of the tree at slot `start` to the next n slots."""
        for buffers in self._inputs.values():
            for x in buffers:
                nodes = x[start - self.low :]
                nodes[: len(path)] = nodes[path.to(x.device)]
        self.tip = None

    def resumable(self, count: int) -> int:
        """The most tokens, at most `count`, to which the row can be shortened."""
        return max(
            n for n in (self._reachable(p, count) for p, _ in self._known()) if n is not None
        )

    def earliest(self, count: int) -> int:
        """The fewest tokens, at least `count`, to which the row can be shortened."""
        positions = [p for p, _ in self._known()]
        return count if self.resumable(count) == count else min(p for p in positions if p > count)

    def _known(self) -> list[tuple[int, ByScan]]:
        return [(0, {}), *self.checkpoints.items(), *self.recent, (self.position, self.states)]

    def _reachable(self, position: int, count: int) -> int | None:
        """The latest position <= `count` to which states of this position can be replayed.

        None: they are later states.
        """
        if position > count:
            return None
        return min(count, self.high) if self.low <= position < self.high else position

    def rewound(self, length: int) -> Self:
        """The row after its first `length` tokens, sharing its inputs with this one.

        Raises ValueError if no state is early enough.
        """
        able = [(p, s) for p, s in self._known() if self._reachable(p, length) == length]
        if not able:
            raise ValueError(
                f"no state of {length} tokens is kept: the nearest is of {self.resumable(length)}"
            )
        position, states = max(able, key=lambda pair: pair[0])
        recent = [pair for pair in self.recent if pair[0] < position]
        checkpoints = {n: s for n, s in self.checkpoints.items() if n <= length}
        return replace(
            self,
            position=position,
            states=states,
            tip=None,
            before_tip=None,
            recent=recent,
            checkpoints=checkpoints,
        )

    def copy(self) -> Self:
        """The same row, with separate inputs."""
        own = {scan: tuple(x.clone() for x in buffers) for scan, buffers in self._inputs.items()}
        return replace(
            self, recent=list(self.recent), checkpoints=dict(self.checkpoints), _inputs=own
        )

    def nbytes(self) -> int:
        """Bytes of its states, without checkpoints and inputs."""
        return sum(x.nbytes for x in self.states.values())


def resumed(position: int, states: ByScan, every: int = 0) -> RowStates:
    """A row whose first `position` tokens have left these states, without their inputs."""
    checkpoints = {position: states} if every and position % every == 0 else {}
    return RowStates(
        position, states, every=every, checkpoints=checkpoints, low=position, high=position
    )
