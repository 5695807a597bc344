"""A draft oracle: what a method would gain at a stated acceptance, its own drafting cost included."""

from __future__ import annotations

import torch

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.limits import DraftLimits
from longdraft.core.sequences import Sequences, without
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict
from longdraft.drafters.base import Drafter
from longdraft.errors import InputError

GOLDEN = (5**0.5 - 1) / 2  # its multiples spread evenly over a step, for any number of rows


class Oracle(Drafter):
    """Does the inner drafter's work, then replaces its chain by the plain output with an error placed so that
    `accept` drafts a step are accepted on average. A figure of cost, never of acceptance.

    Where `accept` is no whole number, each row rounds it up at steps of its own: in a real batch, too, the rows do not
    all accept the same number at once.
    """

    def __init__(self, inner: Drafter, plain: list[list[int]], accept: float):
        self.inner, self.plain, self.accept, self.steps = inner, plain, accept, 0
        self.max_depth, self.is_chain = inner.max_depth, inner.is_chain

    def captures(self) -> CaptureSpec:
        return self.inner.captures()

    def start(self, seqs: Sequences) -> None:
        self.steps = 0
        self._texts = list(range(len(seqs.length)))  # which of the plain outputs each row says
        self._entered = len(self._texts)
        self.inner.start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """Rows enter in the order of the plain outputs."""
        self._texts.append(self._entered)
        self._entered += 1
        self.inner.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self._texts = without(self._texts, row)
        self.inner.leave(seqs, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.inner.update(seqs, tree, verdict, captured)

    def reads(self, seqs: Sequences, depth: int) -> float:
        return self.inner.reads(seqs, depth)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        drafted = self.inner.grow(tree, seqs, limits)
        gamma = drafted.size - 1
        if int(drafted.depth.max()) != gamma:
            raise InputError("--accept needs a method that drafts a chain")
        rows, texts = drafted.tokens.tolist(), [self.plain[i] for i in self._texts]
        for b, (row, plain, at) in enumerate(zip(rows, texts, (seqs.length - seqs.prompt).tolist(), strict=True)):
            good = self._good(self._texts[b])
            for i, token in enumerate(plain[at : at + gamma]):
                row[i + 1] = token if i < good else int(token == 0)
        self.steps += 1
        tokens = torch.tensor(rows, device=drafted.tokens.device)
        return Tree(tokens, drafted.parent, drafted.depth, drafted.mask, drafted.draft_probs)

    def _good(self, b: int) -> int:
        """How many drafts of row b are right at this step; over any number of steps the sum is within 1 of the mean."""
        offset = b * GOLDEN % 1
        return int((self.steps + 1) * self.accept + offset) - int(self.steps * self.accept + offset)
