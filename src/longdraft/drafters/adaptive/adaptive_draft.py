"""How deep and wide to draft now, down to not at all: by what each shape has cost and brought so far."""

from __future__ import annotations

from math import ceil

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters.adaptive.cost_model import ANY, CostModel, ranks
from longdraft.drafters.base import Drafter
from longdraft.drafters.costs import Costs, fitting

EARLY, LATE = 8, 256  # a sleep is so many times as long as the try before it cost: doubled while tries fail
SHORT, LONG = 8, 2048  # rounds that any sleep lasts, at least and at most
TAPPED = -1  # in place of a depth: a plain step that leaves behind what the next draft is guided by
SOON, LATER = 4, 64  # rounds between trials of other shapes: those never tried, the others


class AdaptiveDraft(Drafter):
    """The inner drafter's trees, never deeper or wider than pays, and plain steps where no draft does.

    It reads only the past. The first rounds draft one token, then none, to know what both cost. Where nothing pays, the
    inner drafter sleeps: plain steps without taps, then one with them and one draft, to see whether it would pay by
    now. Where drafts pay, other widths and a plain step take a round now and then, so that none is judged by what was
    long ago. costs: None: those that fit the target that verifies, so that no text depends on the clock.
    """

    def __init__(self, inner: Drafter, costs: Costs | None = None):
        self.inner, self.given = inner, costs
        self.has_draft_probs, self.max_depth = inner.has_draft_probs, inner.max_depth

    def start(self, seqs: Sequences) -> None:
        self.ledger = CostModel()
        self.plan = [(1, ANY), (0, ANY), (0, ANY), (TAPPED, ANY), (1, 1)]  # depths and widths of the next rounds
        self.asleep, self.patience, self.awake, self.cost = 0, EARLY, 0, 0.0
        self.asked: int | None = None  # depth of the round at hand
        self.costs = self.given  # if none were given, the first verification says which fit
        self.inner.start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """What is known of costs and acceptance stays; the next round drafts nothing and is not one of the plan's."""
        self.asked = None
        self.inner.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.inner.leave(seqs, row)

    def rewind(self, seqs: Sequences) -> None:
        self.inner.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        self.inner.ready(seqs)

    @property
    def blind(self) -> bool:
        """Whether the round at hand is hidden from the inner drafter: a plain step as cheap as there is."""
        return self.asked == 0

    def captures(self) -> CaptureSpec:
        return CaptureSpec() if self.blind else self.inner.captures()

    def reads(self, seqs: Sequences, depth: int) -> float:
        return self.inner.reads(seqs, depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self.costs is None:  # nothing has been verified yet
            return tree
        (self.asked, self.width), self.depth = self._shape(), 0
        if self.asked > 0:
            self.inner.ready(seqs)  # a prompt is read once: no shape of draft is to blame for it
        self.costs.begin()
        if self.asked > 0:
            self.live = (~seqs.done).tolist()
            tree = self.inner.grow(tree, seqs, limits.within(self.asked, self.width))
            self.depth = int(tree.depth.max())
        return tree

    def _shape(self) -> tuple[int, int]:
        if self.asleep:
            self.asleep -= 1
            return 0, ANY
        if self.plan:
            depth, width = self.plan.pop(0)
            return depth, width if width < self.ledger.widest else ANY  # a chain has no other width
        _, depth, width = self.ledger.best()
        if depth:
            self.patience, self.cost = EARLY, 0.0
            return self._trial(depth, width) or (depth, width)
        steps = self.cost / self.ledger.seconds(0)[0]
        self.asleep, self.cost = min(max(ceil(self.patience * steps), SHORT), LONG) - 1, 0.0
        self.patience = min(2 * self.patience, LATE)
        self.plan = [(TAPPED, ANY), (1, 1)]  # on waking
        return 0, ANY

    def _trial(self, depth: int, width: int) -> tuple[int, int] | None:
        """Another width of the depth that is best now, or a plain step, when it is time for one."""
        self.awake += 1
        others = [w for w in self.ledger.widths if w != width]
        new = [w for w in others if w not in self.ledger.spent]
        if new and self.awake % SOON == 0:
            return depth, new[0]
        if self.awake % LATER:
            return None
        turn = self.awake // LATER % (len(others) + 1)
        if turn < len(others):
            return depth, others[turn]
        self.plan = [(TAPPED, ANY)]
        return 0, ANY

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if not self.blind:
            self.inner.update(seqs, tree, verdict, captured)
        if self.costs is None:
            assert captured.target is not None
            self.costs = fitting(captured.target, tree)
        if self.asked is None:  # nothing was drafted: the first step of all, or the one after a row has entered
            return
        cost, found = self.costs.end(self.inner, seqs, tree, self.depth, captured), []
        if self.blind:
            self.ledger.plain.append(cost)
            return
        if self.asked != TAPPED:
            found = [row for row, live in zip(ranks(tree, verdict), self.live, strict=True) if live]
            if self.width == ANY:
                self.ledger.widest = max(self.ledger.widest, tree.widest)
            self.ledger.note(self.depth, self.asked, self.width, found, cost)
        if self.ledger.plain:
            brought = 1 + sum(map(len, found)) / max(len(found), 1)
            self.cost = max(0.0, self.cost + cost - brought * self.ledger.seconds(0)[0])
