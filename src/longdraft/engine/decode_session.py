"""Prompts prefilled once and decoded as often as wanted: how methods are compared on the same keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict, Verifier, match
from longdraft.drafters.base import Drafter
from longdraft.drafters.step import clock
from longdraft.engine.generate import Stats, Step, check, decode, prefill
from longdraft.models.lm import LM


class Witness:
    """What a drafter is lent and must leave as it is: the rows' tokens, their ends, their seeds and the sampler."""

    def __init__(self, seqs: Sequences):
        self.seqs, self.tokens, self.length = seqs, seqs.tokens.clone(), seqs.length.tolist()
        self.same = {"sampler": seqs.sampler, "end tokens": list(seqs.eos)}
        self.equal = {"seeds": seqs.seed.clone(), "limits": seqs.limit.clone(), "lengths": seqs.prompt.clone()}

    def take(self, step: Step) -> None:
        """What a step gave belongs to the text from now on."""
        for b, tokens in enumerate(step.tokens):
            n = self.length[b]
            self.tokens[b, n : n + len(tokens)] = self.tokens.new_tensor(tokens)
            self.length[b] = n + len(tokens)

    def altered(self) -> str | None:
        """What is no longer as it was given, in words."""
        s = self.seqs
        now = {"sampler": s.sampler, "end tokens": s.eos}
        rows = {"seeds": s.seed, "limits": s.limit, "lengths": s.prompt}
        found = [name for name, x in self.same.items() if now[name] != x]
        found += [f"rows' {name}" for name, x in self.equal.items() if not torch.equal(rows[name], x)]
        if any(not torch.equal(s.tokens[b, :n], self.tokens[b, :n]) for b, n in enumerate(self.length)):
            found.append("rows' tokens")
        return f"the {found[0]}" if found else None


class DecodeSession:
    """Every decode starts from the prompts alone: what an earlier one wrote behind them is scratch.

    A drafter that changes more than scratch would spoil that for all that follows, plain decoding included: from
    `seal` on, `altered` says so. Raises InputError before any work on bad arguments.
    """

    def __init__(
        self,
        target: LM,
        prompts: list[list[int]],
        max_new_tokens: int,
        sampler: Sampler | None = None,
        seed: int = 0,
        eos: tuple[int, ...] | None = None,
    ):
        check(target, prompts, max_new_tokens, Drafter(), match)
        self.target, self.prompts, self.limit = target, prompts, max_new_tokens
        self.sampler, self.seed, self.eos = (sampler or Sampler()).under(target.rules()), seed, eos
        begin = clock(target.device)
        self.cache = prefill(target, prompts, max_new_tokens, self.sampler, seed, eos).cache
        self.prefill_s = clock(target.device) - begin
        self._start = self.cache.length.clone()
        self._sealed: list[Tensor] | None = None
        self._altered: str | None = None

    def seal(self) -> None:
        """Remember the prompts' keys and values as they are now."""
        self._sealed = self._sums()

    def altered(self) -> str | None:
        """What a drafter changed since `seal` that is not its own, in words. Between decodes."""
        if self._altered is None and self._sealed is not None:
            same = all(torch.equal(a, b) for a, b in zip(self._sealed, self._sums(), strict=True))
            self._altered = None if same else "the prompt's keys and values"
        return self._altered

    def _sums(self) -> list[Tensor]:
        """Of every layer and row, for each committed slot of the prompt, a weighted sum of its bits as whole numbers.

        Weights differ from place to place, so that values which change places are noticed too.
        """
        kinds, found = {2: torch.int16, 4: torch.int32, 8: torch.int64}, []
        for b, n in enumerate(self._start.tolist()):
            for layer in self.cache.layers:
                for x in self.cache.read(layer, b):
                    weights = torch.arange(1, 2 * x.shape[0] * x.shape[2], 2, device=x.device).view(len(x), -1)
                    bits = x[:, :n].contiguous().view(kinds[x.element_size()])
                    found.append(torch.stack([(h * w).sum(1) for h, w in zip(bits, weights, strict=True)]).sum(0))
        return found

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
        seqs = Sequences.on(self.target, self.prompts, limit, self.cache, self.sampler, self.seed, self.eos)
        witness = Witness(seqs)
        for step in decode(self.target, drafter or Drafter(), seqs, verify, stats if stats is not None else Stats()):
            witness.take(step)
            yield step
        self._altered = self._altered or witness.altered()

    def rows(
        self, drafter: Drafter | None = None, stats: Stats | None = None, limit: int | None = None
    ) -> list[list[int]]:
        """The new tokens of each row."""
        rows: list[list[int]] = [[] for _ in self.prompts]
        for step in self.decode(drafter, stats, limit):
            for row, tokens in zip(rows, step.tokens, strict=True):
                row += tokens
        return rows


def first_difference(runs: DecodeSession, plain: list[list[int]], other: list[list[int]]) -> dict[str, Any] | None:
    """Where two outputs part first: {row, position among the new tokens, top2_gap}, or None where they are equal.

    top2_gap: by how much plain decoding preferred its token over the next best there (greedy: in logits; sampled: in
    log-probability plus noise). Rounding explains a difference only where it is tiny. None where it cannot be known:
    plain decoding had ended, or the keys and values that it would read were changed.
    """
    found = [(_parting(a, b), row) for row, (a, b) in enumerate(zip(plain, other, strict=True)) if a != b]
    if not found:
        return None
    position, row = min(found)
    if runs.altered():
        return {"row": row, "position": position, "top2_gap": None}
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
