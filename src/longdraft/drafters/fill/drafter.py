"""Fills a drafter's tree with continuations of the text, and copies alone where they suffice."""

from __future__ import annotations

from collections.abc import Callable
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
from longdraft.drafters.adaptive.adaptive_draft import remaining
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import DEFAULTS, Constants
from longdraft.drafters.adaptive.decision import Draft
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance, filled, ranks
from longdraft.drafters.adaptive.pace import Pace, kept
from longdraft.drafters.adaptive.prices import CostTable, Prices
from longdraft.drafters.adaptive.prices_in_use import PricesInUse, by_arithmetic
from longdraft.drafters.adaptive.slowest_row import SlowestRow
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined
from longdraft.drafters.fill.calibration import Calibration
from longdraft.drafters.fill.continuations import Continuations
from longdraft.drafters.fill.filled_rows import FilledRows, cut, guesses_of
from longdraft.drafters.fill.growth import FilledNode, Growth, Prefix, best_prefix
from longdraft.drafters.fill.rest import Rest
from longdraft.drafters.fill.shape import best_shape
from longdraft.drafters.fill.step_costs import StepCosts
from longdraft.drafters.ngram.suffix import Suffix
from longdraft.drafters.plain import PlainDecoding
from longdraft.models.lm import LM

NOTHING = CaptureSpec()
FORGET = 0.92  # what was seen of an inner drafter counts this much less after steps without it
FORGET_EVERY = 8  # such steps
RETAINED = 0.5  # the same for the chances of both sources when rows begin: texts differ
LEAST = 0.01  # nodes that are less likely to be accepted are not looked for


class NoDraft(PlainDecoding):
    """Takes the place of the model drafter where there is none; it never drafts."""

    max_depth = 0


class FillStep(NamedTuple):
    """A step from its draft on. draft, tree: what the inner drafter was asked for, and gave; None:
    it was not asked. cost: of the draft, in plain steps.
    """

    rows: FilledRows
    draft: Draft | None
    tree: Tree | None
    cost: float


class Fill(Combined[Drafter]):
    """The inner drafter's nodes keep their numbers, and continuations of the text are added after
    them; a step whose draft is copied alone costs the inner drafter nothing but an update.

    Each step takes what promises the most tokens per predicted second: no draft, copied
    continuations, or the inner drafter's tree (of some depth and width) filled with continuations.
    While nothing promises more than a plain step, drafts are considered the more rarely the more
    time that takes. It verifies at most `most` copied nodes in each row. The inner drafter is asked
    only after a step whose captures it was given; steps without a draft give it none while its
    drafts are not expected to pay.
    """

    name = "n-grams"

    def __init__(
        self,
        inner: Drafter | None = None,
        prices: Prices | None = None,
        fixed: Prices | None = None,
        most: int = 48,
        constants: Constants = DEFAULTS,
        default: Callable[[LM], Prices] = by_arithmetic,
    ):
        self.inner = NoDraft() if inner is None else inner
        self.suffix = Suffix(most)
        self.combine((self.inner, self.suffix))
        self.most = most
        self.constants = constants
        self.max_depth = self.inner.max_depth + most
        self.prices = PricesInUse(prices, fixed, default)
        self.costs = StepCosts(self.inner, self.suffix, self.prices, most, constants)
        acceptance = LearnedAcceptance(finds=self.inner.price().finds, constants=constants)
        self.pace = Pace(acceptance, Budget(constants=constants), constants=constants)
        self.text = Continuations(self.suffix)
        self.copying = Calibration()
        self.drafting = Calibration()
        self._captures_nothing = self.inner.captures() == NOTHING
        self._slowest = SlowestRow()
        self._feeds = True  # whether the inner drafter is given the current step's captures
        self._fed = False  # whether it was given those of the step before
        self._step: FillStep | None = None
        self._first = 1  # the first node of the latest draft that the inner drafter did not propose
        self._asked = 0  # drafts of the inner drafter
        self._unasked = 0  # steps without one, since what was seen of it was faded
        self._rest = Rest()

    def proposed_by(self, node: int) -> str:
        return (self.inner if node < self._first else self.suffix).proposed_by(node)

    def view_read(self) -> KVView | None:
        return self.inner.view_read() if self._first > 1 else None

    def captures(self) -> CaptureSpec:
        return self.inner.captures() if self._feeds else NOTHING

    def ready(self, seqs: Sequences) -> None:
        self.suffix.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        super().start(seqs)
        self.pace.budget.begin()
        self._meet(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        super().enter(seqs, row)
        self._meet(seqs)

    def _meet(self, seqs: Sequences) -> None:
        """Rows begin: the next step drafts nothing, and the inner drafter is given its captures."""
        self._feeds = True
        self._fed = False
        self._step = None
        self._slowest.forget()
        self._rest.end()
        self.copying.fade(RETAINED)
        self.drafting.fade(RETAINED)
        if len(seqs.length):
            usual = self.inner.price().usual[0 if seqs.sampler.greedy else 1]
            self.pace.acceptance.usual = usual
            self.pace.changed()

    def idle(self) -> None:
        """Nothing is learned from the step."""
        super().idle()
        self._step = None
        self.costs.skip()

    # Drafts ---------------------------------------------------------------------------------------

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self._step = None
        self._first = 1
        self.costs.skip()
        if self.prices.now is None or tree.size > 1:  # prices are known once a pass was verified
            return tree
        if self._rest.goes_on():
            self._feeds = self._captures_nothing
            self.pace.budget.owe(1.0, 1.0)
            self._slowest.plain_step()
            return tree
        table, fresh = self.costs.known(seqs)
        if fresh:
            self.pace.reprice(table, len(seqs.length))
            self._renew()
        self.suffix.ready(seqs)
        copied = self._filled(Tree.root(tree.tokens[:, 0]), seqs, limits)
        dearest = 1 + self.pace.budget.slack
        cost = self._cost(table)
        copy = best_prefix(copied.reaches(1), 1.0, cost, dearest)
        if copy.rate < self.pace.margin:
            copy = Prefix(0, 1.0, 1.0)
        draft = None
        if self._fed:
            levels = copied.levels(copy.count)
            spent = cost(copy.count)
            best = best_shape(self.pace, copy, levels, spent, limits.depth, dearest)
            if best and isinstance(best.decision, Draft) and self._pays(best.rate, copy.rate, seqs):
                draft = best.decision
        wanted = draft is not None or self._is_wanted(table)
        self._feeds = self._captures_nothing or wanted
        if wanted or copy.count:
            self._rest.end()
        else:
            self._rest.begin(self.costs.decision)
        if draft is None:
            tree = self._copy(tree, copied.within(1 + copy.count))
        else:
            tree = self._ask(draft, table, tree, seqs, limits)
        self.costs.begin()
        return tree

    def _pays(self, rate: float, without: float, seqs: Sequences) -> bool:
        """Whether such drafts would make up for what the inner drafter must read before the first
        one, such as the prompt. rate, without: tokens per plain step with them, and without.
        """
        once = self.costs.reading(seqs)
        left = remaining(seqs)
        return not once or once + left / rate < left / max(without, 1.0)

    def _is_wanted(self, table: CostTable) -> bool:
        """Whether the inner drafter would be asked next if nothing could be copied."""
        if not isinstance(self.pace.best().decision, Draft):
            return False
        smallest = table.look + table.draft[table.widths[0]][1] + table.verify(1) - 1
        return self.pace.budget.allows(smallest)

    def _filled(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> FilledRows:
        """The nodes of this tree and those that may fill it, the likeliest first."""
        live = [not done for done in seqs.done.tolist()]
        # the bonus token takes the last position
        left = (seqs.prompt + seqs.limit - seqs.length - 1).tolist()
        least = max(LEAST, self.costs.each)
        guesses = guesses_of(tree, self.pace.acceptance.usual)
        rows: list[list[FilledNode]] = []
        for b, pairs in enumerate(torch.stack([tree.parent, tree.tokens], 2)[:, 1:].tolist()):
            room = min(limits.depth, left[b], seqs.deepest[b]) if live[b] else 0
            growth = Growth(self.text, b, limits.within(room), self.copying, self.drafting)
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
        self.inner.idle()
        self._unasked += 1
        if self._unasked == FORGET_EVERY:
            self._unasked = 0
            self.pace.acceptance.fade(FORGET)
            self.pace.changed()
        count = max(map(len, rows.nodes)) - 1
        self._step = FillStep(rows, None, None, self.costs.each * count)
        return rows.plant(tree) if count else tree

    def _ask(
        self, draft: Draft, table: CostTable, tree: Tree, seqs: Sequences, limits: DraftLimits
    ) -> Tree:
        """The inner drafter's draft, filled."""
        self.inner.ready(seqs)
        begin = self.costs.clock()
        tree = self.inner.grow(tree, seqs, limits.within(draft.depth, draft.width))
        if int(tree.depth.max()) == draft.depth:
            self.costs.drafted(draft.depth, draft.width, begin)
        self._first = tree.size
        self._asked += 1
        if self._asked % self.constants.renew_every == 0:
            self._renew()
        rows = self._filled(tree, seqs, limits)
        drafted = table.drafted(draft.depth, draft.width)
        cost = self._cost(table, drafted, tree.size - 1)
        dearest = max(1 + self.pace.budget.slack, cost(0))
        added = best_prefix(rows.reaches(tree.size), rows.tokens(tree.size), cost, dearest)
        rows = rows.within(tree.size + added.count)
        self._step = FillStep(rows, draft, tree, drafted + self.costs.each * added.count)
        return rows.plant(tree) if added.count else tree

    def _renew(self) -> None:
        """Choose for how many steps a view stays."""
        if self.inner.renews:
            self.pace.renew()
            self.inner.stay(self.pace.stays)

    # Verification ---------------------------------------------------------------------------------

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        step = self._step
        self._step = None
        if step is not None:
            self._learn(step, seqs, tree, verdict, captured)
        if self._feeds:
            self.inner.update(seqs, tree, verdict, captured)
        self._fed = self._feeds
        self.suffix.update(seqs, tree, verdict, captured)
        if self.prices.now is None:
            assert captured.target is not None
            self.prices.learn(captured.target)

    def _learn(
        self, step: FillStep, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures
    ) -> None:
        """Learn from a step: what it has cost, and which of its nodes were accepted."""
        cost = step.cost + self.costs.verified(tree.size - 1, captured.spec)
        counts = verdict.count.tolist()
        paths = zip(verdict.path.tolist(), counts, strict=True)
        step.rows.observe(tree, [path[:n] for path, n in paths])
        if step.draft is not None and step.tree is not None:
            self._learn_draft(step.draft, step.tree, seqs, verdict, step.rows.live)
        self.pace.budget.owe(cost, self._slowest.gain(seqs, step.rows.mean(counts)))

    def _learn_draft(
        self, draft: Draft, tree: Tree, seqs: Sequences, verdict: Verdict, live: list[bool]
    ) -> None:
        """Learn how deep the inner drafter's own nodes are accepted."""
        table = self.costs.table
        assert table is not None
        rows = zip(ranks(tree, cut(verdict, tree.size)), live, seqs.deepest, strict=True)
        # a draft that is cut shows no refusal
        accepted = [row for row, on, deepest in rows if on and deepest >= draft.depth]
        depth = int(tree.depth.max())
        nodes = filled(tree, depth, table.levels.get(draft.width, [])) if depth else []
        share = kept(self.pace.stays, self.constants)
        self.pace.acceptance.add(draft.depth, draft.width, nodes, accepted, share)
        self.pace.changed()
