"""Rows in flight: their tokens, their cache, and when each of them ends."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, overload

import torch
from torch import Tensor

from longdraft.core.cache import KVCache
from longdraft.core.rules import Rules
from longdraft.core.sampling import Sampler
from longdraft.core.verify import Verdict
from longdraft.ops import row_seed

if TYPE_CHECKING:
    from longdraft.models.lm import LM

T = TypeVar("T")


@overload
def without(rows: Tensor, row: int) -> Tensor: ...
@overload
def without(rows: list[T], row: int) -> list[T]: ...
def without(rows: Tensor | list[T], row: int) -> Tensor | list[T]:
    """A tensor or list with an entry per row, less this row's: the last row takes its place."""
    last = len(rows) - 1
    order = [last if b == row else b for b in range(last)]
    return rows[order] if isinstance(rows, Tensor) else [rows[b] for b in order]


@dataclass
class Sequences:
    """Between steps: length == cache.length + 1 (the root's keys and values are not cached yet).

    tokens [B,N] (N has room for every prompt and its limit), length, prompt, limit, seed, done [B]. limit counts new
    tokens; a row is done at its limit or at one of its end tokens, eos[b].
    """

    tokens: Tensor
    length: Tensor
    cache: KVCache
    sampler: Sampler
    limit: Tensor
    seed: Tensor
    eos: list[tuple[int, ...]]
    prompt: Tensor = field(init=False)
    capacity: int = field(init=False)  # rows that may be in flight at once: `first` keeps it
    done: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.prompt, self.capacity = self.length.clone(), len(self.length)
        self.done = self.limit <= 0

    @staticmethod
    def of(
        prompts: list[list[int]], limit: int, cache: KVCache, sampler: Sampler, seed: int = 0, eos: tuple[int, ...] = ()
    ) -> Sequences:
        """Row b draws with row_seed(seed, b); all end at the same end tokens."""
        device, B = cache.length.device, len(prompts)
        length = torch.tensor([len(p) for p in prompts], device=device)
        tokens = torch.zeros(B, int(length.max()) + limit, dtype=torch.long, device=device)
        for b, p in enumerate(prompts):
            tokens[b, : len(p)] = torch.tensor(p, device=device)
        seeds = torch.tensor([row_seed(seed, b) for b in range(B)], device=device)
        limits = torch.full_like(length, limit)
        return Sequences(tokens, length, cache, sampler, limits, seeds, [eos] * B)

    @staticmethod
    def on(
        target: LM,
        prompts: list[list[int]],
        limit: int,
        cache: KVCache,
        sampler: Sampler,
        seed: int = 0,
        eos: tuple[int, ...] | None = None,
    ) -> Sequences:
        """Rows of this model: under its rules, unless the sampler has others. eos None: ended by its end tokens.

        Raises InputError where the model has a rule that cannot be applied.
        """
        ends = target.end_tokens if eos is None else eos
        return Sequences.of(prompts, limit, cache, sampler.under(Rules.of(target)), seed, ends)

    def first(self, rows: int) -> Sequences:
        """Rows [0, rows), over the same memory."""
        return self._part(slice(rows), self.cache.first(rows))

    def row(self, b: int) -> Sequences:
        """Row b alone, over the same memory."""
        return self._part(slice(b, b + 1), self.cache.row(b))

    def _part(self, rows: slice, cache: KVCache) -> Sequences:
        view = copy(self)
        for name in ("tokens", "length", "limit", "seed", "eos", "prompt", "done"):
            setattr(view, name, getattr(self, name)[rows])
        view.cache = cache
        return view

    @property
    def last(self) -> Tensor:
        """[B] the newest token of each row: the next root."""
        return self.tokens.gather(1, self.length[:, None] - 1)[:, 0]

    @property
    def room(self) -> int:
        """How many drafted tokens the longest-lived row can still use (the bonus token takes the last place)."""
        left = torch.where(self.done, 0, self.prompt + self.limit - self.length)
        return max(int(left.max()) - 1, 0)

    def tokens_since(self, consumed: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens after each row's first `consumed` [B] ones, left-aligned: [B,M], and how many are real [B]."""
        n = self.length - consumed
        at = consumed[:, None] + torch.arange(max(int(n.max()), 0), device=n.device)
        return self.tokens.gather(1, at.clamp(max=self.tokens.shape[1] - 1)), n

    def commit(self, verdict: Verdict) -> Tensor:
        """Move accepted keys and values, append the emitted tokens; returns how many each row took [B].

        What comes after an end token or beyond the limit is dropped; rows already done take nothing.
        """
        room, done = (self.prompt + self.limit - self.length).tolist(), self.done.tolist()
        taken, over = [], []
        for b, (row, n) in enumerate(zip(verdict.emitted.tolist(), verdict.count.tolist(), strict=True)):
            row = [] if done[b] else row[: min(n, room[b])]
            ends = next((i + 1 for i, token in enumerate(row) if token in self.eos[b]), 0)
            taken.append(ends or len(row))
            over.append(done[b] or ends > 0 or taken[b] == room[b])
        count = torch.tensor(taken, device=self.length.device)
        self.cache.keep(verdict.path, count)
        for b, (at, n) in enumerate(zip(self.length.tolist(), taken, strict=True)):
            self.tokens[b, at : at + n] = verdict.emitted[b, :n]
        self.length += count
        self.done.copy_(torch.tensor(over))
        return count
