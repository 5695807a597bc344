"""A model drafter among the sources of one tree, with what is known of its costs and its drafts."""

from __future__ import annotations

from longdraft.core import CaptureSpec, Sequences, Tree, Verdict
from longdraft.drafters.adaptive.adaptive_draft import remaining
from longdraft.drafters.adaptive.budget import Budget
from longdraft.drafters.adaptive.constants import Constants
from longdraft.drafters.adaptive.decision import Draft
from longdraft.drafters.adaptive.learned_acceptance import LearnedAcceptance, filled, ranks
from longdraft.drafters.adaptive.pace import Pace, kept
from longdraft.drafters.adaptive.prices import CostTable
from longdraft.drafters.adaptive.prices_in_use import PricesInUse
from longdraft.drafters.base import Drafter
from longdraft.drafters.fill.calibration import Calibration
from longdraft.drafters.fill.filled_rows import cut
from longdraft.drafters.fill.step_costs import StepCosts
from longdraft.drafters.ngram.suffix import Suffix

NOTHING = CaptureSpec()
FORGET = 0.92  # what was seen of a drafter counts this much less after steps without it
FORGET_EVERY = 8  # such steps
RETAINED = 0.5  # the same for the chances of its nodes when rows begin: texts differ


class ModelSource:
    """The drafter is asked only after a step whose captures it was given.

    pace: the depth and width of its drafts. nodes: the chances of its nodes. captures_nothing:
    whether it needs no captures. fed: whether it was given those of the step before. asked: its
    drafts so far. gain: the plain steps that its next draft is expected to save beside what is
    copied, where it may turn out not to be asked; captures that cost more are not made.
    """

    def __init__(
        self,
        drafter: Drafter,
        suffix: Suffix,
        prices: PricesInUse,
        budget: Budget,
        most: int,
        constants: Constants,
    ):
        self.drafter = drafter
        self.constants = constants
        self.costs = StepCosts(drafter, suffix, prices, most, constants)
        price = drafter.price()
        self.rough = price.rough
        acceptance = LearnedAcceptance(finds=price.finds, constants=constants)
        self.pace = Pace(acceptance, budget, constants=constants)
        self.nodes = Calibration()
        self.captures_nothing = drafter.captures() == NOTHING
        self.fed = False
        self.asked = 0
        self.gain = 0.0
        self._expected = 0  # steps of these rows from which that is known
        self._unasked = 0  # steps without a draft, since what was seen was faded

    def begin(self, seqs: Sequences) -> None:
        """Rows begin."""
        self.fed = False
        self._expected = 0
        self.nodes.fade(RETAINED)
        if len(seqs.length):
            self.pace.acceptance.usual = self.drafter.price().usual[int(not seqs.sampler.greedy)]
            self.pace.changed()

    def table(self, seqs: Sequences) -> CostTable:
        """The costs of these rows, in plain steps."""
        table, fresh = self.costs.known(seqs)
        if fresh:
            self.pace.reprice(table, len(seqs.length))
            self._renew()
        return table

    def promise(self, seqs: Sequences) -> float:
        """The expected tokens per plain step of its drafts alone, for what is left of the rows."""
        self.table(seqs)
        return self.pace.forecast(remaining(seqs))

    def expect(self, gain: float) -> None:
        """In this step a draft saves so much; 0: it would not be asked."""
        self._expected += 1
        share = max(1 / self._expected, self.constants.gain_rate)
        self.gain += share * (gain - self.gain)

    def is_wanted(self, table: CostTable) -> bool:
        """Whether its next draft is worth what must be captured for it."""
        if not isinstance(self.pace.best().decision, Draft):
            return False
        if self._expected and self.gain < table.look / self.pace.stays:
            return False
        smallest = table.look + table.draft[table.widths[0]][1] + table.verify(1) - 1
        return self.pace.budget.allows(smallest)

    def pays(self, rate: float, without: float, seqs: Sequences) -> bool:
        """Whether such drafts would make up for what must be read before the first one, such as the
        prompt. rate, without: tokens per plain step with them, and without.
        """
        once = self.costs.reading(seqs)
        left = remaining(seqs)
        return not once or once + left / rate < left / max(without, 1.0)

    def was_asked(self) -> None:
        self.asked += 1
        if self.asked % self.constants.renew_every == 0:
            self._renew()

    def was_not_asked(self) -> None:
        """A step copies alone."""
        self._unasked += 1
        if self._unasked == FORGET_EVERY:
            self._unasked = 0
            self.forget(FORGET)

    def forget(self, share: float) -> None:
        """Let what was seen of the depth of its drafts count this much less."""
        self.pace.acceptance.fade(share)
        self.pace.changed()

    def _renew(self) -> None:
        """Choose for how many steps a view stays."""
        if self.drafter.renews:
            self.pace.renew()
            self.drafter.stay(self.pace.stays)

    def learn(
        self, draft: Draft, tree: Tree, seqs: Sequences, verdict: Verdict, live: list[bool]
    ) -> None:
        """Learn how deep its own nodes are accepted. draft, tree: what it was asked for, and
        gave. live: whether each row was running.
        """
        table = self.pace.table
        assert table is not None
        rows = zip(ranks(tree, cut(verdict, tree.size)), live, seqs.deepest, strict=True)
        # a draft that is cut shows no refusal
        accepted = [row for row, on, deepest in rows if on and deepest >= draft.depth]
        depth = int(tree.depth.max())
        nodes = filled(tree, depth, table.levels.get(draft.width, [])) if depth else []
        share = kept(self.pace.stays, self.constants)
        self.pace.acceptance.add(draft.depth, draft.width, nodes, accepted, share)
        self.pace.changed()
