"""Continuous batching: a row that ends leaves, a waiting prompt takes its place between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from longdraft.drafters.base import Drafter
from longdraft.engine import Stats, check, step
from longdraft.errors import InputError
from longdraft.model import LM
from longdraft.ops import row_seed
from longdraft.sampling import Sampler
from longdraft.sequences import Sequences
from longdraft.verify import Verifier, match


@dataclass
class Finished:
    """The new tokens of one prompt, by its place in the order of prompts."""

    index: int
    tokens: list[int]


def serve(
    target: LM,
    prompts: Iterable[list[int]],
    drafter: Drafter | None = None,
    batch: int = 8,
    slots: int = 1 << 15,
    max_new_tokens: int = 256,
    sampler: Sampler | None = None,
    seed: int = 0,
    eos: tuple[int, ...] | None = None,
    verify: Verifier = match,
    stats: Stats | None = None,
) -> Iterator[Finished]:
    """Decode any number of prompts, at most `batch` side by side; yields each as it ends.

    Prompt i draws with row_seed(seed, i): its text is that of row i of `generate` with this seed, whoever its
    neighbours are, and what `generate` gives it alone with seed=row_seed(seed, i). slots: the longest prompt and its
    new tokens. Prompts are taken from the iterable as places become free. A drafter starts anew when a prompt enters:
    one with a model of its own reads all rows again. Raises InputError on a bad prompt, when its turn comes.
    """
    if batch < 1:
        raise InputError(f"batch is {batch}: give 1 or more")
    drafter, stats, waiting = drafter or Drafter(), stats or Stats(), enumerate(prompts)
    places = Places(target, batch, slots, max_new_tokens, sampler or Sampler(), seed, eos)
    fresh = True  # whether rows have entered or left since the drafter started
    while True:
        with torch.inference_mode():
            for index, prompt in islice(waiting, places.free):
                check(target, [prompt], max_new_tokens, drafter, verify)
                places.enter(index, prompt)
                fresh = True
            if not places.index:
                return
            if fresh:
                drafter.start(places.seqs)
            step(target, drafter, places.seqs, verify, stats, draft=not fresh)
            fresh = False
            ended = [places.leave(b) for b in reversed(range(len(places.index))) if bool(places.seqs.done[b])]
        fresh = bool(ended)
        yield from ended


class Places:
    """Rows [0, n) of one cache are in use; the last one moves into the place of a row that leaves."""

    def __init__(
        self, target: LM, batch: int, slots: int, limit: int, sampler: Sampler, seed: int, eos: tuple[int, ...] | None
    ):
        self.target, self.slots, self.limit, self.seed = target, slots, limit, seed
        self.whole = Sequences.on(target, [[0]] * batch, slots, target.new_cache(batch, slots), sampler, seed, eos)
        self.index: list[int] = []  # of each row's prompt
        self.seqs = self.whole.first(0)

    @property
    def free(self) -> int:
        return len(self.whole.length) - len(self.index)

    def enter(self, index: int, prompt: list[int]) -> None:
        """Prefill a prompt into the next free row. Raises InputError where it needs more slots."""
        if len(prompt) + self.limit > self.slots:
            need = f"{len(prompt)} tokens and {self.limit} new ones"
            raise InputError(f"prompt {index} needs {need}, and there are {self.slots} slots a row: give more")
        s, b = self.whole, len(self.index)
        self.index.append(index)
        s.tokens[b, : len(prompt)] = torch.tensor(prompt, device=s.tokens.device)
        s.length[b] = s.prompt[b] = len(prompt)
        s.limit[b], s.seed[b], s.done[b], s.cache.length[b] = self.limit, row_seed(self.seed, index), False, 0
        self.target.prefill(prompt[:-1], s.cache.row(b))
        self.seqs = s.first(len(self.index))

    def leave(self, b: int) -> Finished:
        """Row b's new tokens; its place is filled by the last row."""
        s, last = self.whole, len(self.index) - 1
        found = Finished(self.index[b], s.tokens[b, int(s.prompt[b]) : int(s.length[b])].tolist())
        if b != last:
            for value in (s.tokens, s.length, s.limit, s.seed, s.prompt, s.done):
                value[b] = value[last]
            s.cache.move(last, b)
            self.index[b] = self.index[last]
        self.index.pop()
        self.seqs = s.first(last)
        return found
