"""Rows of a cache whose recurrent layers have states.

They can be shortened only to lengths whose states are known.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from longdraft.core.states import ByScan, Recurrence, RowStates, resumed

Mark = tuple[Tensor, list[RowStates]]  # lengths and states of rows


class Rewinding:
    """The states of each row are those of its first tokens, never of more than its length.

    length [B], of rows [first, first+B) of the memory whose states and recurrences these are.
    Without recurrent layers there are no recurrences, and a length is all there is to a row.
    appended: how many nodes of the present pass are committed after it whatever it computes: all of
    them or none.
    """

    appended: int = 0

    def __init__(
        self,
        length: Tensor,
        first: int,
        states: list[RowStates],
        recurrences: dict[int, Recurrence],
    ):
        self.length: Tensor = length
        self._first = first
        self._states = states
        self._recurrences = recurrences

    @property
    def recurrences(self) -> dict[int, Recurrence]:
        """The recurrences of the model by scan of a pass, which the first pass adds."""
        return self._recurrences

    def states(self, b: int) -> RowStates:
        """The states of row b's recurrent layers, as of the latest pass."""
        return self._states[self._first + b]

    def clear(self) -> None:
        """Make the rows empty."""
        self.length.zero_()
        for b in range(len(self.length)):
            self._states[self._first + b] = RowStates(every=self.states(b).every)

    def _has_states(self, b: int) -> bool:
        """Whether row b has states, by a pass or by `resume` before the first one."""
        return bool(self._recurrences or self.states(b).states)

    def _settled(self, b: int) -> RowStates:
        """The states of row b with all committed tokens, including those of the latest pass."""
        self.states(b).settle(int(self.length[b]), self.recurrences)
        return self.states(b)

    def resumable(self, count: int) -> int:
        """The largest number of slots <= `count` to which the first row can be truncated.

        Without recurrent layers this is `count`.
        """
        return self._settled(0).resumable(count) if self._has_states(0) else count

    def earliest(self, count: int) -> int:
        """The fewest slots, at least `count`, to which the first row can be truncated."""
        return self._settled(0).earliest(count) if self._has_states(0) else count

    def truncate(self, lengths: Tensor | int) -> None:
        """Keep the first slots of each row, as many as it has or fewer.

        Raises ValueError if a row has no states of its length (see resumable).
        """
        wanted = torch.as_tensor(lengths, device=self.length.device).expand_as(self.length)
        for b, (n, before) in enumerate(zip(wanted.tolist(), self.length.tolist(), strict=True)):
            if n < before and self._has_states(b) and n < self._settled(b).position:
                self._states[self._first + b] = self.states(b).rewound(n)
        self.length.copy_(wanted)

    def resume(self, count: int, states: ByScan) -> None:
        """Set the first row to `count` slots, which were written from elsewhere.

        states: after these tokens.
        """
        self.length[0] = count
        self._states[self._first] = resumed(count, states, self.states(0).every)

    def states_at(self, count: int) -> ByScan | None:
        """The states after the first row's first `count` tokens; None: they are not kept.

        Without recurrent layers {}.
        """
        if not self._has_states(0):
            return {}
        row = self.states(0)
        if count == int(self.length[0]):
            row.settle(count, self.recurrences)
        return row.states if row.position == count else row.checkpoints.get(count)

    def mark(self) -> Mark:
        """The present lengths and states, for `restore`."""
        rows = list[RowStates]()
        for b in range(len(self.length)):
            states = self._settled(b) if self._has_states(b) else self.states(b)
            rows.append(states.copy())
        return self.length.clone(), rows

    def restore(self, mark: Mark) -> None:
        """Shorten the rows to what they were."""
        self.length.copy_(mark[0])
        self._states[self._first : self._first + len(mark[1])] = [row.copy() for row in mark[1]]

    def keep_checkpoints(self, every: int) -> None:
        """Keep the states wherever a row's length is a multiple of `every`, beginning now."""
        for b in range(len(self.length)):
            self.states(b).every = every

    @contextmanager
    def appending(self, count: int) -> Generator[None]:
        """The pass inside runs the next `count` tokens of each row, which are committed after it.

        Unlike a draft's, their inputs are not all needed later, so a pass over a prompt keeps few
        of them.
        """
        self.appended = count
        try:
            yield
        finally:
            self.appended = 0
        self.length += count

    @contextmanager
    def holding(self) -> Generator[None]:
        """Inside the block, states stay at the present lengths or before.

        So rows can be shortened to these lengths again.
        """
        saved = [self.states(b).floor for b in range(len(self.length))]
        for b, (n, floor) in enumerate(zip(self.length.tolist(), saved, strict=True)):
            self.states(b).floor = n if floor is None else min(n, floor)
        try:
            yield
        finally:
            for b, floor in enumerate(saved):
                self.states(b).floor = floor

    @contextmanager
    def earlier(self, lengths: list[int]) -> Generator[None]:
        """Inside the block the rows have the states of these lengths."""
        rows = slice(self._first, self._first + len(lengths))
        saved = self._states[rows]
        for b, n in enumerate(lengths):
            if self._has_states(b):
                self._states[self._first + b] = self._settled(b).rewound(n).copy()
        try:
            yield
        finally:
            self._states[rows] = saved
