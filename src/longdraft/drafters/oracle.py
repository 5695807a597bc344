"""Simulated acceptance: what a method would gain at a stated acceptance length, at its real
drafting cost.
"""

from __future__ import annotations

import torch

from longdraft.core import CaptureSpec, DraftLimits, Sequences, Tree, without
from longdraft.drafters.base import Drafter
from longdraft.drafters.combined import Combined
from longdraft.errors import InputError

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, are spread evenly for any number of rows


class Oracle(Combined[Drafter]):
    """Runs the inner drafter, then replaces its chain so that `accept` drafts per step are accepted
    on average.

    A fractional `accept` is rounded up at different steps for different rows, as rows of a real
    batch differ.
    """

    def __init__(self, inner: Drafter, plain: list[list[int]], accept: float):
        """plain: the output of plain decoding for each prompt."""
        self.combine((inner,))
        self.inner = inner
        self.plain = plain
        self.accept = accept
        self.steps = 0
        self.max_depth = inner.max_depth
        self.is_chain = inner.is_chain

    def captures(self) -> CaptureSpec:
        return self.inner.captures()

    def start(self, seqs: Sequences) -> None:
        self.steps = 0
        self._output_of = list(range(len(seqs.length)))  # index of each row's plain output
        self._entered = len(self._output_of)
        super().start(seqs)

    def enter(self, seqs: Sequences, row: int) -> None:
        """Rows enter in the order of the plain outputs."""
        self._output_of.append(self._entered)
        self._entered += 1
        super().enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self._output_of = without(self._output_of, row)
        super().leave(seqs, row)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        drafted = self.inner.grow(tree, seqs, limits)
        gamma = drafted.size - 1
        if int(drafted.depth.max()) != gamma:
            raise InputError("--accept needs a method that drafts a chain")
        rows = drafted.tokens.tolist()
        for row, output, begin in zip(
            rows, self._output_of, (seqs.length - seqs.prompt).tolist(), strict=True
        ):
            right = self._right(output)
            for i, token in enumerate(self.plain[output][begin : begin + gamma]):
                row[i + 1] = token if i < right else int(token == 0)
        self.steps += 1
        tokens = torch.tensor(rows, device=drafted.tokens.device)
        return Tree(tokens, drafted.parent, drafted.depth, drafted.mask, drafted.draft_probs)

    def _right(self, output: int) -> int:
        """Right drafts at this step of the row with this output; sums over steps are within 1 of
        the mean's.
        """
        offset = output * GOLDEN % 1
        return int((self.steps + 1) * self.accept + offset) - int(self.steps * self.accept + offset)
