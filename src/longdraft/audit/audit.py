"""Is a method lossless on this model and these texts? Every difference from plain decoding, found and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from longdraft.audit.passage import Passage, Run
from longdraft.audit.ties import WIDTH
from longdraft.core.sampling import Sampler
from longdraft.core.verify import Verifier, match
from longdraft.drafters import Drafter
from longdraft.engine import generate as engine
from longdraft.errors import InputError
from longdraft.models.lm import LM

WINDOW = 512  # new tokens per prompt at most, where the text has room for more prompts: long free-running text loops


@dataclass(frozen=True)
class Prompt:
    """Tokens of a text, and how many new ones are decoded after them."""

    name: str
    tokens: list[int]
    new: int


@dataclass(frozen=True)
class Way:
    """Greedy, or sampled with one seed."""

    sampler: Sampler
    seed: int

    def __str__(self) -> str:
        T = self.sampler.temperature
        return f"T={T:g} seed {self.seed}" if T else "greedy"


def ways(temperature: float | None, seeds: int, seed: int) -> list[Way]:
    """One temperature; without one, greedy and 1. Sampled: with `seeds` seeds from `seed` on."""
    hot = 1.0 if temperature is None else temperature
    found = [Way(Sampler(), seed)] if not temperature else []
    return found + [Way(Sampler(hot), seed + i) for i in range(seeds) if hot > 0]


def windows(name: str, text: list[int], size: int, new: int, positions: int) -> list[Prompt]:
    """Prompts of at most `size` tokens, spread over a text, from which `new` tokens are decoded in all."""
    count = -(-new // WINDOW)
    spare = len(text) - min(size, positions - WINDOW)
    if spare < count - 1 or count == 1 or positions <= WINDOW:
        return [Prompt(name, text[: max(min(size, positions - new), 1)], new)]
    starts = [spare * i // (count - 1) for i in range(count)]
    parts = [new * (i + 1) // count - new * i // count for i in range(count)]
    long = len(text) - spare
    return [Prompt(f"{name}:{at}", text[at : at + long], n) for at, n in zip(starts, parts, strict=True)]


@dataclass
class Audit:
    """What is decoded both ways. build: a new drafter for every run.

    tolerance: how close two scores tie, in logits; 0: every difference is a failure. Where ties are allowed, plain
    decoding's text is also compared with itself in passes of WIDTH tokens: the control, which says how often ties come
    about by rounding alone (bench/ties.py).
    """

    target: LM
    build: Callable[[], Drafter]
    prompts: list[Prompt]
    ways: list[Way]
    tolerance: float
    verify: Verifier | None = None

    def check(self) -> None:
        """Raises InputError for what could only fail later."""
        if not self.tolerance >= 0:
            raise InputError(f"tolerance is {self.tolerance}: give 0 or more")
        for p in self.prompts:
            engine.check(self.target, [p.tokens], p.new, Drafter(), match)
        self.build()

    def cost(self, prompt: Prompt) -> int:
        """Steps of a prompt decoded one way, as far as they are known beforehand."""
        return 2 * prompt.new + (-(-prompt.new // WIDTH) if self.tolerance else 0)

    @property
    def steps(self) -> int:
        return len(self.ways) * sum(map(self.cost, self.prompts))

    def run(self, tick: Callable[[int, str], None], known: Callable[[int, str], bool]) -> Iterator[dict[str, Any]]:
        """One record per prompt and way; those that are known already are passed over.

        A keyboard interrupt yields the record as far as it came, and then goes on its way.
        """
        for i, prompt in enumerate(self.prompts):
            passage: Passage | None = None
            for way in self.ways:
                if known(i, str(way)):
                    tick(self.cost(prompt), "")
                    continue
                tick(0, f"{prompt.name} {way}")
                if passage is None or passage.damaged:
                    passage = Passage(self, prompt)
                one = Run(prompt, i, way)
                try:
                    passage.compare(one, lambda n: tick(n, ""))
                except KeyboardInterrupt:
                    one.interrupted = True
                yield one.record()
                if one.interrupted:
                    raise KeyboardInterrupt
