"""The rows of a batch without their cache: tokens, lengths, limits and seeds."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from longdraft.core.tree import UNBOUNDED


@dataclass
class Rows:
    """Row b has committed tokens[b, :length[b]]; the last of them is the root of its next tree.

    tokens [B,N] (N has room for every prompt and its limit); length, prompt, limit, seed, done [B].
    prompt: tokens in the prompt. limit: how many tokens may follow it. eos[b]: the row's end
    tokens. A row is done when it reaches its limit or one of its end tokens. deepest[b]: how deep
    the row's drafts may be; 0: it is decoded plainly.
    """

    tokens: Tensor
    length: Tensor
    limit: Tensor
    seed: Tensor
    eos: list[tuple[int, ...]]
    prompt: Tensor = field(init=False)
    # how many rows there is memory for; `first` and `row` do not change it
    capacity: int = field(init=False)
    done: Tensor = field(init=False)
    deepest: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.length.clone()
        self.capacity = len(self.length)
        self.done = self.limit <= 0
        self.deepest = [UNBOUNDED] * self.capacity

    def first(self, count: int) -> Self:
        """Rows [0, count), over the same memory."""
        return self._slice(slice(count))

    def row(self, b: int) -> Self:
        """Row b alone, over the same memory."""
        return self._slice(slice(b, b + 1))

    def _slice(self, rows: slice) -> Self:
        view = copy(self)
        for name in ("tokens", "length", "limit", "seed", "eos", "prompt", "done", "deepest"):
            setattr(view, name, getattr(self, name)[rows])
        return view

    @property
    def last(self) -> Tensor:
        """[B] the newest token of each row, which is the next root."""
        return self.tokens.gather(1, self.length[:, None] - 1)[:, 0]

    @property
    def room(self) -> int:
        """The largest number of drafted tokens that any row can still use.

        The bonus token takes the last position.
        """
        left = torch.where(self.done, 0, self.prompt + self.limit - self.length) - 1
        if self.is_bounded:
            left = left.minimum(torch.tensor(self.deepest, device=left.device))
        return max(int(left.max()), 0)

    @property
    def is_bounded(self) -> bool:
        """Whether the drafts of some row may not be as deep as they could be."""
        return any(deepest < UNBOUNDED for deepest in self.deepest)

    def to_draft(self) -> Self:
        """The same rows for a drafter: those that may have no drafts count as done."""
        if all(self.deepest):
            return self
        rows = copy(self)
        plain = [deepest == 0 for deepest in self.deepest]
        rows.done = self.done | torch.tensor(plain, device=self.done.device)
        return rows

    def tokens_since(self, consumed: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's tokens after its first `consumed` [B], left-aligned [B,M].

        The second tensor [B]: how many of them are real.
        """
        n = self.length - consumed
        position = consumed[:, None] + torch.arange(max(int(n.max()), 0), device=n.device)
        return self.tokens.gather(1, position.clamp(max=self.tokens.shape[1] - 1)), n
