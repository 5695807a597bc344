"""The rows of a batch together with their key-value cache and their sampler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self, TypeVar, overload

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.rows import Rows
from longdraft.core.sampling_protocol import Sampling
from longdraft.core.verify import Verdict
from longdraft.ops import row_seed
from longdraft.sampling_parameters import SEED

T = TypeVar("T")


@overload
def without(rows: Tensor, row: int) -> Tensor: ...
@overload
def without(rows: list[T], row: int) -> list[T]: ...
def without(rows: Tensor | list[T], row: int) -> Tensor | list[T]:
    """Remove a row's entry from a tensor or list with one per row; the last row takes its place."""
    last = len(rows) - 1
    order = list(range(last))
    if row < last:
        order[row] = last
    return rows[order] if isinstance(rows, Tensor) else [rows[b] for b in order]


@dataclass
class Sequences(Rows):
    """Rows with their cache and sampler.

    Between steps length == cache.length + 1: the root's keys and values are not cached yet.
    prompt_states {row: {layer: [1,m,d]}}: until the first step, what a prefill has kept of a row's
    last cached tokens.
    """

    cache: KVCache
    sampler: Sampling
    prompt_states: dict[int, dict[int, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(
        prompts: list[list[int]],
        limit: int,
        cache: KVCache,
        sampler: Sampling,
        seed: int = 0,
        eos: tuple[int, ...] = (),
    ) -> Sequences:
        """Sequences of these prompts, each with up to `limit` new tokens.

        Row b draws with row_seed(seed, b); all rows have the same end tokens. Raises InputError for
        a bad seed.
        """
        SEED.check(seed)
        device = cache.length.device
        B = len(prompts)
        length = torch.tensor([len(p) for p in prompts], device=device)
        tokens = torch.zeros(B, int(length.max()) + limit, dtype=torch.long, device=device)
        for b, p in enumerate(prompts):
            tokens[b, : len(p)] = torch.tensor(p, device=device)
        seeds = torch.tensor([row_seed(seed, b) for b in range(B)], device=device)
        return Sequences(
            tokens, length, torch.full_like(length, limit), seeds, [eos] * B, cache, sampler
        )

    def _slice(self, rows: slice) -> Self:
        view = super()._slice(rows)
        view.cache = self.cache.rows(rows)
        view.prompt_states = {}
        view.sampler = self.sampler.of_rows(rows)
        return view

    def states_from(self, b: int, first: int) -> dict[int, Tensor]:
        """The kept states of row b's n cached tokens from `first` on: {layer: [1,n-first,d]}.

        {} unless all of them were kept.
        """
        count = int(self.cache.length[b]) - first
        kept = self.prompt_states.get(b, {})
        return {layer: x[:, -count:] for layer, x in kept.items() if 0 < count <= x.shape[1]}

    def shared(self, before: Tensor | None) -> int:
        """The number of tokens that the only row's cache shares with an earlier text.

        before: tokens [1,N] of that text. Shared tokens are the first ones of both. 0 if either is
        not the only row, and for the same memory, to which a session writes one text after another.
        """
        if before is None or before.data_ptr() == self.tokens.data_ptr():
            return 0
        if not len(before) == len(self.tokens) == self.capacity == 1:
            return 0
        n = min(int(self.cache.length[0]), before.shape[1])
        return int((before[0, :n] == self.tokens[0, :n]).cumprod(0).sum())

    def commit(self, verdict: Verdict) -> Tensor:
        """Commit the accepted keys and values and append the emitted tokens.

        Returns how many tokens each row took [B]. Tokens after an end token or beyond the limit are
        dropped; rows that are done take none.
        """
        self.prompt_states = {}
        room = (self.prompt + self.limit - self.length).tolist()
        done = self.done.tolist()
        taken = []
        over = []
        for b, (row, n) in enumerate(
            zip(verdict.emitted.tolist(), verdict.count.tolist(), strict=True)
        ):
            row = [] if done[b] else row[: min(n, room[b])]
            ends = next((i + 1 for i, token in enumerate(row) if token in self.eos[b]), 0)
            taken.append(ends or len(row))
            over.append(done[b] or ends > 0 or taken[b] == room[b])
        count = torch.tensor(taken, device=self.length.device)
        self.cache.keep(verdict.path, count)
        for b, (start, n) in enumerate(zip(self.length.tolist(), taken, strict=True)):
            self.tokens[b, start : start + n] = verdict.emitted[b, :n]
        self.length += count
        self.done.copy_(torch.tensor(over))
        return count
