"""Prompts that are prefilled once and decoded many times.

So methods are compared on the same keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from longdraft.core import (
    PromptSpec,
    Rows,
    Sampler,
    Sampling,
    Sequences,
    Tree,
    Verdict,
    Verifier,
    match,
)
from longdraft.drafters.base import Drafter
from longdraft.drafters.plain import PlainDecoding
from longdraft.drafters.step import StepResult, clock
from longdraft.engine.generate import Stats, Step, check, decode, prefill, rows_of
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import Keeper, PromptFill, store_prompts


class RowsSnapshot:
    """Detects changes by a drafter to data that it may only read.

    These are the rows' tokens, ends, seeds and sampler.
    """

    def __init__(self, seqs: Sequences):
        self.seqs = seqs
        self.tokens = seqs.tokens.clone()
        self.length = seqs.length.tolist()
        self.kept = self._settings()

    def _settings(self) -> dict[str, Any]:
        seqs = self.seqs
        return {
            "sampler": seqs.sampler,
            "end tokens": list(seqs.eos),
            "rows' seeds": seqs.seed.tolist(),
            "rows' limits": seqs.limit.tolist(),
            "rows' lengths": seqs.prompt.tolist(),
        }

    def extend(self, step: Step) -> None:
        """Add the tokens that a step emitted."""
        for b, tokens in enumerate(step.tokens):
            n = self.length[b]
            self.tokens[b, n : n + len(tokens)] = self.tokens.new_tensor(tokens)
            self.length[b] = n + len(tokens)

    def altered(self) -> str | None:
        """The first of the data that has been changed, in words, or None."""
        changed = [name for name, now in self._settings().items() if now != self.kept[name]]
        for b, n in enumerate(self.length):
            if not torch.equal(self.seqs.tokens[b, :n], self.tokens[b, :n]):
                changed.append("rows' tokens")
                break
        return f"the {changed[0]}" if changed else None


class DecodeSession:
    """Prefilled prompts; every decode starts from them alone.

    The slots after them, which earlier decodes wrote, are scratch. A drafter that changes a
    committed slot would spoil all later decodes, plain ones included; after `seal`, `altered`
    detects this. report, keep: see LM.prefill. kept: where a prompt that was read before is loaded
    from, and stored otherwise. Raises InputError for bad arguments before any work.

    prefill_s: seconds that reading and loading took. read_s: seconds that reading all of the
    prompts takes, as measured now or when they were stored; None if that is not known. known: how
    many tokens of each prompt were loaded.
    """

    def __init__(
        self,
        target: LM,
        prompts: list[list[int]],
        max_new_tokens: int,
        sampler: Sampling | None = None,
        seed: int = 0,
        eos: tuple[int, ...] | None = None,
        report: Callable[[int], None] | None = None,
        keep: PromptSpec | None = None,
        kept: Keeper | None = None,
    ):
        check(target, prompts, max_new_tokens, PlainDecoding(), match)
        self.target = target
        self.prompts = prompts
        self.limit = max_new_tokens
        self.sampler = (sampler or Sampler()).under(target.rules())
        self.seed = seed
        self.eos = eos
        begin = clock(target.device)
        reads = list[PromptFill]()
        seqs = prefill(
            target, prompts, max_new_tokens, self.sampler, seed, eos, report, keep, kept, reads
        )
        self.cache = seqs.cache
        self.prompt_states = seqs.prompt_states
        self.prefill_s = clock(target.device) - begin
        self.known = [read.known for read in reads]
        whole = [read.whole_s for read in reads if read.whole_s is not None]
        self.read_s = sum(whole) if len(whole) == len(reads) else None
        store_prompts(kept, prompts, self.cache, reads)
        self._start = self.cache.mark()
        self._sealed: list[Tensor] | None = None
        self._altered: str | None = None

    def copy(self) -> DecodeSession:
        """The same prompts over keys and values of its own, so that two decodes may take turns."""
        self.rewind()
        other = copy(self)
        with torch.inference_mode():
            other.cache = self.cache.copy()
            other._start = other.cache.mark()
        return other

    def rewind(self) -> None:
        """Go back to the prompts: tokens that were decoded are forgotten."""
        with torch.inference_mode():
            self.cache.restore(self._start)

    def seal(self) -> None:
        """Take checksums of the prompts' keys and values."""
        self._sealed = self._checksums()

    def altered(self) -> str | None:
        """The data that a drafter has changed since `seal` without permission, in words, or None.

        Call it between decodes.
        """
        if self._altered is None and self._sealed is not None:
            same = all(
                torch.equal(a, b) for a, b in zip(self._sealed, self._checksums(), strict=True)
            )
            if self.target.team.any(not same):
                self._altered = "the prompt's keys and values"
        return self._altered

    def _checksums(self) -> list[Tensor]:
        """A sum of the bits of each layer, row and committed slot, and of each state.

        The bits are weighted so that an exchange is detected too. The states are those with which
        decoding begins.
        """
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        sums = []
        lengths, rows = self._start
        for b, n in enumerate(lengths.tolist()):
            sums += [x.double().sum() for x in rows[b].states.values()]
            for layer in self.cache.layers:
                for x in self.cache.stored(layer, b):
                    heads = len(x)
                    width = x.shape[2]  # 0 for the values of layers that cache keys alone
                    weights = 2 * torch.arange(heads * width, device=x.device) + 1
                    bits = x[:, :n].contiguous().view(kinds[x.element_size()])
                    by_head = [
                        (h * w).sum(1)
                        for h, w in zip(bits, weights.view(heads, width), strict=True)
                    ]
                    sums.append(torch.stack(by_head).sum(0))
        return sums

    def decode(
        self,
        drafter: Drafter | None = None,
        stats: Stats | None = None,
        limit: int | None = None,
        verify: Verifier = match,
        watch: Callable[[StepResult], None] | None = None,
    ) -> Iterator[Step]:
        """The tokens of each step.

        limit: decode fewer new tokens than there is room for. One decode at a time.
        """
        self.rewind()
        limit = min(limit or self.limit, self.limit)
        seqs = self.target.sequences(
            self.prompts, limit, self.cache, self.sampler, self.seed, self.eos
        )
        seqs.prompt_states = self.prompt_states
        snapshot = RowsSnapshot(seqs)
        stats = stats if stats is not None else Stats()
        for step in decode(self.target, drafter or PlainDecoding(), seqs, verify, stats, watch):
            snapshot.extend(step)
            yield step
        self._altered = self._altered or snapshot.altered()

    def rows(
        self, drafter: Drafter | None = None, stats: Stats | None = None, limit: int | None = None
    ) -> list[list[int]]:
        """The new tokens of each row."""
        return rows_of(self.decode(drafter, stats, limit), len(self.prompts))


def first_difference(
    runs: DecodeSession, plain: list[list[int]], other: list[list[int]]
) -> dict[str, Any] | None:
    """The first difference of two outputs, or None if they are equal.

    It is {row, position among the new tokens, top2_gap}. top2_gap: how much better plain decoding
    scored its token than the next best one there (greedy: in logits; sampled: in log-probability
    plus noise); only a tiny gap can be due to rounding. None: it had ended, or its keys are
    damaged.
    """
    unequal = list[tuple[int, int]]()
    for row, (ours, theirs) in enumerate(zip(plain, other, strict=True)):
        for i, (our_token, their_token) in enumerate(zip_longest(ours, theirs)):
            if our_token != their_token:
                unequal.append((i, row))
    if not unequal:
        return None
    position, row = min(unequal)
    if runs.altered():
        return {"row": row, "position": position, "top2_gap": None}
    gaps: list[float] = []

    def measure(tree: Tree, logits: Tensor, sampler: Sampling, rows: Rows) -> Verdict:
        best, next_best = sampler.scores(logits, tree, rows)[row, 0].topk(2).values.tolist()
        gaps.append(best - next_best)
        return match(tree, logits, sampler, rows)

    for _ in runs.decode(limit=position + 1, verify=measure):
        pass
    gap = gaps[position] if position < len(gaps) else math.nan  # nan: plain decoding had ended
    return {"row": row, "position": position, "top2_gap": gap if math.isfinite(gap) else None}
