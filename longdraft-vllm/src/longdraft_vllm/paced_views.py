"""How many tokens the target drafts under a view, and for how many steps it uses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from longdraft.drafters.adaptive.pace import kept
from longdraft_vllm.pace import Pace, Row, Shape, agree, size_of

EVERY = (1, 2, 4, 8, 16)  # steps for which a view may be used
USUAL = 4  # steps, as long as nothing is chosen


class Plan(NamedTuple):
    """depth: tokens to draft now. every: steps for which a view is used. watch: whether the next
    pass is watched.
    """

    depth: int
    every: int = USUAL
    watch: bool = False


class PacedViews:
    """Never drafts under a view that nothing was watched for: a pass that is watched comes first.

    every: as the user gave it, or None. guided: whether views are chosen from queries.
    """

    def __init__(self, usual: float, most: int, every: int | None, guided: bool):
        self.pace = Pace(usual, most)
        self.most = most
        self.given = every
        self.guided = guided
        self.plan = Plan(0, every or (USUAL if guided else 1))
        self._rows: dict[object, Row] = {}
        self._drafted: dict[object, int] = {}

    def begin(self, rows: dict[object, Row], alone: bool) -> Plan:
        """A step has ended with these rows -> what to do next, the same in all processes."""
        pace = self.pace
        before = self._rows
        self._rows = rows
        pace.clean = not (self.guided and self.plan.watch)
        pace.saw(rows, alone)
        for request, drafted in self._drafted.items():
            row = rows.get(request)
            if row and before[request].length == row.length - row.new:  # no step lies between
                pace.acceptance.saw(request, row.new - 1, drafted)
        if not rows:  # prompts are being read, after which drafting goes on as before
            self.plan = self.plan._replace(depth=0)
            return self.plan
        shape = pace.pick(rows, self._shapes())
        plan = (
            Plan(0, self.plan.every) if shape is None else Plan(*shape.payload, watch=self.guided)
        )
        if plan.depth and self.guided and not self.plan.watch:
            plan = plan._replace(depth=0)
        self.plan = Plan(*agree(plan))
        return self.plan

    def _shapes(self) -> Iterator[Shape]:
        size = size_of(self._rows.values())
        chances = [self.pace.acceptance.chances(request) for request in self._rows]
        draft = self.pace.costs.draft(size)
        select = self.pace.costs.select(size) if self.guided else 0.0
        intervals: Sequence[int] = EVERY if self.guided else (1,)
        if self.given:
            intervals = [self.given]
        for depth in range(1, self.most + 1):
            gained = sum(sum(chance[:depth]) for chance in chances)
            for every in intervals:
                seconds = None if draft is None else depth * draft + select / every
                aged = kept(every) / kept(self.plan.every)
                yield Shape(depth * size[0], gained * aged, seconds, (depth, every))

    def end(self) -> None:
        """What was planned has been done."""
        depth = self.plan.depth
        self._drafted = dict.fromkeys(self._rows, depth) if depth else {}
        self.pace.ended(self._rows, depth * len(self._rows))

    def timed(self, select: Callable[[], int], draft: Callable[[], Any]) -> Any:
        """Run both and learn from their times -> what `draft` gives. `select` gives the number of
        new views.
        """
        start = self.pace.clock()
        chosen = select()
        middle = self.pace.clock()
        drafts = draft()
        times = self.pace.costs.at(size_of(self._rows.values()))
        if self.pace.warm:
            if chosen and self.guided:
                times.select.append((middle - start) * len(self._rows) / chosen)
            times.draft.append(
                (self.pace.clock() - (middle if chosen else start)) / self.plan.depth
            )
        return drafts
