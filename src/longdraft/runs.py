"""Prompts prefilled once and decoded as often as wanted: how methods are compared on the same keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from longdraft.drafters.base import Drafter
from longdraft.engine import Stats, Step, check, decode, prefill
from longdraft.model import LM
from longdraft.rounds import clock
from longdraft.sampling import Sampler
from longdraft.sequences import Sequences
from longdraft.tree import Tree
from longdraft.verify import Verdict, Verifier, match


class Prefilled:
    """Every decode starts from the prompts alone: what an earlier one wrote behind them is scratch.

    Raises InputError before any work on bad arguments.
    """

    def __init__(
        self,
        target: LM,
        prompts: list[list[int]],
        max_new_tokens: int,
        sampler: Sampler | None = None,
        seed: int = 0,
        eos: tuple[int, ...] = (),
    ):
        check(target, prompts, max_new_tokens, Drafter(), match)
        self.target, self.prompts, self.limit = target, prompts, max_new_tokens
        self.sampler, self.seed, self.eos = sampler or Sampler(), seed, eos
        begin = clock(target.device)
        self.cache = prefill(target, prompts, max_new_tokens, self.sampler, seed, eos).cache
        self.prefill_s = clock(target.device) - begin
        self._start = self.cache.length.clone()

    def decode(
        self,
        drafter: Drafter | None = None,
        stats: Stats | None = None,
        limit: int | None = None,
        verify: Verifier = match,
    ) -> Iterator[Step]:
        """What each step gives; limit: fewer new tokens than there is room for. One decode at a time."""
        with torch.inference_mode():
            self.cache.length.copy_(self._start)
        limit = min(limit or self.limit, self.limit)
        seqs = Sequences.of(self.prompts, limit, self.cache, self.sampler, self.seed, self.eos)
        yield from decode(self.target, drafter or Drafter(), seqs, verify, stats if stats is not None else Stats())

    def rows(
        self, drafter: Drafter | None = None, stats: Stats | None = None, limit: int | None = None
    ) -> list[list[int]]:
        """The new tokens of each row."""
        rows: list[list[int]] = [[] for _ in self.prompts]
        for step in self.decode(drafter, stats, limit):
            for row, tokens in zip(rows, step.tokens, strict=True):
                row += tokens
        return rows


def first_difference(runs: Prefilled, plain: list[list[int]], other: list[list[int]]) -> dict[str, Any] | None:
    """Where two outputs part first: {row, position among the new tokens, top2_gap}, or None where they are equal.

    top2_gap: by how much plain decoding preferred its token over the next best there (greedy: in logits; sampled: in
    log-probability plus noise). Rounding explains a difference only where it is tiny.
    """
    found = [(_parting(a, b), row) for row, (a, b) in enumerate(zip(plain, other, strict=True)) if a != b]
    if not found:
        return None
    position, row = min(found)
    gaps: list[float] = []

    def spy(tree: Tree, logits: Tensor, seqs: Sequences) -> Verdict:
        best, next_best = seqs.sampler.scores(logits, tree, seqs)[row, 0].topk(2).values.tolist()
        gaps.append(best - next_best)
        return match(tree, logits, seqs)

    for _ in runs.decode(limit=position + 1, verify=spy):
        pass
    gap = gaps[position] if position < len(gaps) else math.nan  # plain decoding had ended before
    return {"row": row, "position": position, "top2_gap": gap if math.isfinite(gap) else None}


def _parting(a: list[int], b: list[int]) -> int:
    """The first position at which two unequal rows differ: one may simply be shorter."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
