"""Fills a drafter's tree with continuations of the text, and copies alone where they suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from longdraft.core import (
    Captures,
    CaptureSpec,
    DraftLimits,
    KVView,
    Sequences,
    Tree,
    Verdict,
)
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.decision import Draft
from longdraft.drafters.adaptive.prices import CostTable, Prices
from longdraft.drafters.adaptive.prices_in_use import PricesInUse, by_arithmetic
from longdraft.drafters.adaptive.slowest_row import SlowestRow
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined
from longdraft.drafters.fill.calibration import Calibration
from longdraft.drafters.fill.continuations import Continuations
from longdraft.drafters.fill.drafter_in_use import DrafterInUse
from longdraft.drafters.fill.filled_rows import FilledRows, guesses_of
from longdraft.drafters.fill.growth import FilledNode, Growth, Prefix, best_prefix
from longdraft.drafters.fill.model_source import NOTHING, RETAINED, ModelSource
from longdraft.drafters.fill.rest import Rest
from longdraft.drafters.fill.shape import Promise, best_shape
from longdraft.drafters.fill.step_costs import StepCosts
from longdraft.drafters.ngram.suffix import Suffix
from longdraft.drafters.plain import PlainDecoding
from longdraft.models.lm import LM

LEAST = 0.01  # nodes that are less likely to be accepted are not looked for


class NoDraft(PlainDecoding):
    """Takes the place of the model drafter where there is none; it never drafts."""

    max_depth = 0


class FillStep(NamedTuple):
    """A step from its draft on. draft, tree: what the model drafter was asked for, and gave; None:
    it was not asked. cost: of the draft, in plain steps.
    """

    rows: FilledRows
    draft: Draft | None
    tree: Tree | None
    cost: float


class Fill(Combined[Drafter]):
    """A model drafter's nodes keep their numbers, and continuations of the text are added after
    them; a step whose draft is copied alone costs the model drafter nothing but an update.

    Each step takes what promises the most tokens per predicted second: no draft, copied
    continuations, or the tree of the model drafter in use (of some depth and width) filled with
    continuations. While nothing promises more than a plain step, drafts are considered the more
    rarely the more time that takes. It verifies at most `most` copied nodes in each row. All
    drafters share one budget of what may be lost. Steps without a draft give the one in use no
    captures while its drafts are not expected to pay.
    """

    name = "n-grams"

    def __init__(
        self,
        drafters: Sequence[Drafter] = (),
        prices: Prices | None = None,
        fixed: Prices | None = None,
        most: int = 48,
        constants: Constants = DEFAULTS,
        default: Callable[[LM], Prices] = by_arithmetic,
    ):
        models = list(drafters) or [NoDraft()]
        self.suffix = Suffix(most)
        self.combine((*models, self.suffix))
        self.most = most
        self.max_depth = max(d.max_depth for d in models) + most
        self.prices = PricesInUse(prices, fixed, default)
        self.budget = Budget(constants=constants)
        self.sources = [
            ModelSource(d, self.suffix, self.prices, self.budget, most, constants) for d in models
        ]
        self.use = DrafterInUse(self.sources, constants)
        self.text = Continuations(self.suffix)
        self.copying = Calibration()
        self._slowest = SlowestRow()
        self._wanted = True  # whether the next draft of the drafter in use is worth its captures
        self._feeds = True  # whether it is given the current step's captures
        self._step: FillStep | None = None
        self._first = 1  # the first node of the latest draft that no model drafter proposed
        self._drafter = self.now.drafter  # which proposed the nodes before it
        self._rest = Rest()

    @property
    def now(self) -> ModelSource:
        """The source whose drafter is in use."""
        return self.use.now

    @property
    def costs(self) -> StepCosts:
        return self.now.costs

    def proposed_by(self, node: int) -> str:
        return (self._drafter if node < self._first else self.suffix).proposed_by(node)

    def view_read(self) -> KVView | None:
        return self._drafter.view_read() if self._first > 1 else None

    def captures(self) -> CaptureSpec:
        return self.now.drafter.captures() if self._feeds else NOTHING

    def choosing(self) -> CaptureSpec:
        return self.now.drafter.choosing() if self._feeds else NOTHING

    def ready(self, seqs: Sequences) -> None:
        self.suffix.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.budget.begin()
        self._meet(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self._meet(seqs)

    def _meet(self, seqs: Sequences) -> None:
        """Rows begin: the next step asks no model drafter, and one is given its captures."""
        self._step = None
        self._slowest.forget()
        self.copying.fade(RETAINED)
        for source in self.sources:
            source.begin(seqs)
        if self.prices.now is not None:
            self.use.begin(seqs)
        self._give_captures()

    def _give_captures(self) -> None:
        """The next step captures what the drafter in use needs."""
        self._wanted = True
        self._feeds = True
        self._rest.end()

    def idle(self) -> None:
        """Nothing is learned from the step."""
        self._rest.quiet = False
        self.now.drafter.idle()
        self.suffix.idle()
        self._step = None
        self.costs.skip()

    # Drafts ---------------------------------------------------------------------------------------

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if self._rest.passes():
            return tree
        self._step = None
        self._first = 1
        self.costs.skip()
        if self.prices.now is None or tree.size > 1:  # prices are known once a pass was verified
            return tree
        passed = self._rest.count()
        self._plain_steps(passed)
        self.use.steps += passed
        if self._rests(seqs):
            self._plain_steps(1)
            return tree
        source = self.now
        table = source.table(seqs)
        self.suffix.ready(seqs)
        copied = self._filled(Tree.root(tree.tokens[:, 0]), seqs, limits)
        dearest = 1 + self.budget.slack
        cost = self._cost(table)
        copy = best_prefix(copied.reaches(1), 1.0, cost, dearest)
        if copy.rate < source.pace.margin:
            copy = Prefix(0, 1.0, 1.0)
        best = self._worth_asking(copied, copy, cost(copy.count), seqs, limits, dearest)
        source.expect(best.gain if best else 0.0)
        draft = best.draft if best and source.fed else None
        self._wanted = draft is not None or source.is_wanted(table)
        self._feeds = source.captures_nothing or self._wanted
        if self._wanted:
            self._rest.end()
        elif not copy.count:
            self._rest.begin(self.costs.decision, self.costs.looking, self.text.level(copied.live))
        if draft is None:
            tree = self._copy(tree, copied.within(1 + copy.count))
        else:
            tree = self._ask(draft, table, tree, seqs, limits)
        self.costs.begin()
        return tree

    def _rests(self, seqs: Sequences) -> bool:
        """Whether no draft is considered in this step, since none paid lately; one is where a row's
        match is longer than those by then.
        """
        if not self._rest.looks():
            return False
        self.suffix.ready(seqs)
        if self.text.level([not done for done in seqs.done.tolist()]) > self._rest.level:
            self._rest.interrupt()
            return False
        return True

    def _plain_steps(self, count: int) -> None:
        """So many steps of a rest were plain ones."""
        self.budget.owe(count, count)
        self._slowest.plain_steps(count)

    def _worth_asking(
        self,
        copied: FilledRows,
        copy: Prefix,
        spent: float,
        seqs: Sequences,
        limits: DraftLimits,
        dearest: float,
    ) -> Promise | None:
        """The draft that the model drafter in use is asked for beside the copied nodes, if it was
        given captures; None: these promise as much alone. spent: the cost of a step with them.
        """
        levels = copied.levels(copy.count)
        best = best_shape(self.now.pace, copy, levels, spent, limits.depth, dearest)
        return best if best and self.now.pays(best.rate, copy.rate, seqs) else None

    def _filled(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> FilledRows:
        """The nodes of this tree and those that may fill it, the likeliest first."""
        live = [not done for done in seqs.done.tolist()]
        # the bonus token takes the last position
        left = (seqs.prompt + seqs.limit - seqs.length - 1).tolist()
        least = max(LEAST, self.costs.least)
        guesses = guesses_of(tree, self.now.pace.acceptance.usual)
        rows: list[list[FilledNode]] = []
        for b, pairs in enumerate(torch.stack([tree.parent, tree.tokens], 2)[:, 1:].tolist()):
            room = min(limits.depth, left[b], seqs.deepest[b]) if live[b] else 0
            growth = Growth(self.text, b, limits.within(room), self.copying, self.now.nodes)
            rows.append(growth.fill(pairs, guesses[b], self.most, least))
        return FilledRows(rows, live)

    def _cost(
        self, table: CostTable, before: float = 0.0, nodes: int = 0
    ) -> Callable[[int], float]:
        """The cost of a step with n copied nodes, where `nodes` others were drafted for `before`
        plain steps.
        """
        return lambda n: before + table.verify(nodes + n) + self.costs.each * n

    def _copy(self, tree: Tree, rows: FilledRows) -> Tree:
        """A draft of copied nodes alone."""
        self.now.drafter.idle()
        self.now.was_not_asked()
        count = max(map(len, rows.nodes)) - 1
        self._step = FillStep(rows, None, None, self.costs.each * count)
        return rows.plant(tree) if count else tree

    def _ask(
        self, draft: Draft, table: CostTable, tree: Tree, seqs: Sequences, limits: DraftLimits
    ) -> Tree:
        """The model drafter's draft, filled."""
        drafter = self.now.drafter
        begin = 0.0 if self.costs.reading(seqs) else self.costs.clock()
        drafter.ready(seqs)
        tree = drafter.grow(tree, seqs, limits.within(draft.depth, draft.width))
        whole = int(tree.depth.max()) == draft.depth
        self._first = tree.size
        self._drafter = drafter
        self.now.was_asked()
        rows = self._filled(tree, seqs, limits)
        if whole:
            self.costs.drafted(draft.depth, draft.width, begin)
        drafted = table.drafted(draft.depth, draft.width)
        cost = self._cost(table, drafted, tree.size - 1)
        dearest = max(1 + self.budget.slack, cost(0))
        added = best_prefix(rows.reaches(tree.size), rows.tokens(tree.size), cost, dearest)
        rows = rows.within(tree.size + added.count)
        self._step = FillStep(rows, draft, tree, drafted + self.costs.each * added.count)
        return rows.plant(tree) if added.count else tree

    # Verification ---------------------------------------------------------------------------------

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        if self._rest.quiet:
            self._rest.quiet = False
            if self._feeds:
                self.now.drafter.update(seqs, tree, verdict, captured)
            return
        step = self._step
        self._step = None
        if step is not None:
            self._learn(step, seqs, tree, verdict, captured)
        if self._feeds:
            self.now.drafter.update(seqs, tree, verdict, captured)
        self.now.fed = self._feeds
        self.suffix.update(seqs, tree, verdict, captured)
        if self.prices.now is None:
            assert captured.target is not None
            self.prices.learn(captured.target)
        self._hand_over(seqs)

    def _hand_over(self, seqs: Sequences) -> None:
        """Let another drafter take over if it promises more."""
        before = self.now
        if self.use.step(seqs, self._wanted):
            before.fed = False
            self._give_captures()

    def _learn(
        self, step: FillStep, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures
    ) -> None:
        """Learn from a step: what it has cost, and which of its nodes were accepted."""
        cost = step.cost + self.costs.verified(tree.size - 1, captured.spec)
        counts = verdict.count.tolist()
        paths = zip(verdict.path.tolist(), counts, strict=True)
        step.rows.observe(tree, [path[:n] for path, n in paths])
        if max(counts) > 1:
            self._rest.end()
        if step.draft is not None and step.tree is not None:
            self.now.learn(step.draft, step.tree, seqs, verdict, step.rows.live)
        self.budget.owe(cost, self._slowest.gain(seqs, step.rows.mean(counts)))
