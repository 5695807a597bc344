"""A batch whose rows are sampled in different ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core.rows import Rows
from longdraft.core.rules import Rules
from longdraft.core.sampling import ChainDraws, Sampler
from longdraft.core.tree import Tree


@dataclass(frozen=True)
class RowSamplers:
    """Row b is sampled by samplers[b] as if it were alone: a `Sampling`.

    Rows that all have the same settings are computed together. Replace an entry of `samplers` to
    change a row's.
    """

    samplers: list[Sampler]

    @property
    def shared(self) -> Sampler | None:
        """The sampler that all rows have, if they have the same."""
        first = self.samplers[0]
        return first if all(s is first or s == first for s in self.samplers) else None

    def under(self, rules: Rules) -> RowSamplers:
        return RowSamplers([sampler.under(rules) for sampler in self.samplers])

    def processed(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        return self._each(
            lambda s, b, tree, rows: s.processed(logits[b], tree, rows, start), tree, rows
        )

    def scores(
        self,
        logits: Tensor,
        tree: Tree,
        rows: Rows,
        start: int = 0,
        seed: Tensor | None = None,
        tokens: Tensor | None = None,
        summed: bool = False,
    ) -> Tensor:
        def of(sampler: Sampler, b: slice, tree: Tree, rows: Rows) -> Tensor:
            own = None if seed is None else seed[b]
            return sampler.scores(logits[b], tree, rows, start, own, tokens, summed)

        return self._each(of, tree, rows)

    def law(self, logits: Tensor, tree: Tree, rows: Rows, start: int = 0) -> Tensor:
        return self._each(lambda s, b, tree, rows: s.law(logits[b], tree, rows, start), tree, rows)

    def draw(self, logits: Tensor, tree: Tree, rows: Rows) -> Tensor:
        return self._each(lambda s, b, tree, rows: s.draw(logits[b], tree, rows), tree, rows)

    def chain(self, count: int, rows: Rows) -> ChainDraws | None:
        return ChainDraws.of(count, list(self.samplers), rows)

    def forced(self, rows: Rows) -> list[list[int]]:
        if (shared := self.shared) is not None:
            return shared.forced(rows)
        return [s.forced(rows.row(b))[0] for b, s in enumerate(self.samplers)]

    def failure(self, rows: Rows, row: int) -> str:
        return self.samplers[row].failure(rows, row)

    def prepare(self, tree: Tree, rows: Rows) -> None:
        if (shared := self.shared) is not None:
            shared.prepare(tree, rows)
            return
        for b, sampler in enumerate(self.samplers):
            if sampler.constrained:
                sampler.prepare(tree.row(b), rows.row(b))

    @property
    def constrained(self) -> bool:
        return any(s.constrained for s in self.samplers)

    @property
    def bare(self) -> bool:
        return all(s.bare for s in self.samplers)

    @property
    def greedy(self) -> bool:
        return all(s.greedy for s in self.samplers)

    @property
    def lag(self) -> int:
        return max(s.lag for s in self.samplers)

    def of_rows(self, rows: slice) -> RowSamplers:
        return RowSamplers(self.samplers[rows])

    def _each(
        self, call: Callable[[Sampler, slice, Tree, Rows], Tensor], tree: Tree, rows: Rows
    ) -> Tensor:
        """The results [B,..] of call(sampler, rows, their tree, their rows).

        It is called for all rows at once, or for each alone.
        """
        if (shared := self.shared) is not None:
            return call(shared, slice(None), tree, rows)
        return torch.cat(
            [
                call(s, slice(b, b + 1), tree.row(b), rows.row(b))
                for b, s in enumerate(self.samplers)
            ]
        )
