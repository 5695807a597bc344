"""The cost of a decoding step: timed where drafts cannot change the output, computed from counts elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from longdraft.core import Captures, Sequences, Tree
from longdraft.drafters.base import Drafter
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import bytes_read

# Fixed costs as fractions of a plain step. On a CPU they are rounded from the records of task `steps` (native step);
# a GPU's NODE is an estimate: it computes about 200 times as fast as it reads.
NODE = {"cuda": 0.005, "cpu": 0.04}  # each verified node beyond a row's first
SCORES = 0.3  # keeping a verification's attention scores, then selecting and copying keys by them
LEVEL = 0.05  # each level drafted by a model, however few bytes it reads


class Measured:
    """Seconds. Only for steps whose draft cannot change the output: two runs never measure the same times."""

    def __init__(self, clock: Callable[[], float] | None = None):
        self.clock, self.began = clock or perf_counter, 0.0

    def begin(self) -> None:
        """A step begins."""
        self.began = self.clock()

    def end(self, inner: Drafter, seqs: Sequences, tree: Tree, depth: int, captured: Captures) -> float:
        """The step's cost; `inner` drafted `depth` levels of the tree, and its verification kept `captured`."""
        return max(self.clock() - self.began, 1e-9)  # a coarse clock may stand still, and rates divide by this


class Counted:
    """Multiples of a plain step, computed from counts alone: the same call has the same costs in every run.

    Plain steps, drafts (Drafter.reads) and verifications cost the bytes they read; each verified node adds a little.
    These costs ignore the machine, so they can be far from its times.
    """

    def __init__(self, target: LM):
        self.target, self.node = target, NODE.get(target.device.type, NODE["cpu"])

    def begin(self) -> None: ...

    def end(self, inner: Drafter, seqs: Sequences, tree: Tree, depth: int, captured: Captures) -> float:
        plain = bytes_read(self.target, seqs.cache)
        cost = bytes_read(self.target, seqs.cache, tree.size) / plain
        cost += self.node * len(seqs.length) * (tree.size - 1)
        if captured.spec.rows is not None:
            cost += SCORES
        if depth and (drafted := inner.reads(seqs, depth)):
            cost += drafted / plain + LEVEL * depth
        return cost


Costs = Measured | Counted  # in any unit: only ratios of costs are used


def costs_for(target: LM, tree: Tree) -> Costs:
    """Measured where the output does not depend on which trees are drafted, Counted elsewhere.

    It depends on them under verify=reject, and where a node's numbers depend on the other nodes of its pass.
    """
    return Measured() if target.exact and tree.draft_probs is None else Counted(target)
