"""The plan of an audit: prompts, and ways of decoding."""

from __future__ import annotations

from dataclasses import dataclass

from longdraft.core.sampling import Sampler

# new tokens per prompt at most, if the text has room for more prompts: long greedy outputs repeat
WINDOW = 512


@dataclass(frozen=True)
class AuditPrompt:
    """The tokens of a prompt, and the number of new tokens to decode after it."""

    name: str
    tokens: list[int]
    new: int


@dataclass(frozen=True)
class DecodingWay:
    """A way of decoding: greedy, or sampled with one seed."""

    sampler: Sampler
    seed: int

    def __str__(self) -> str:
        T = self.sampler.temperature
        return f"T={T:g} seed {self.seed}" if T else "greedy"


def ways(temperature: float | None, seeds: int, seed: int) -> list[DecodingWay]:
    """The ways for a temperature (None: greedy and 1).

    Sampled decoding uses `seeds` seeds, from `seed` on.
    """
    hot = 1.0 if temperature is None else temperature
    greedy = [DecodingWay(Sampler(), seed)] if not temperature else []
    return greedy + [DecodingWay(Sampler(hot), seed + i) for i in range(seeds) if hot > 0]


def windows(name: str, text: list[int], size: int, new: int, positions: int) -> list[AuditPrompt]:
    """Prompts of at most `size` tokens, spread over a text.

    In total, `new` tokens are decoded after them.
    """
    count = -(-new // WINDOW)
    spare = len(text) - min(size, positions - WINDOW)
    if spare < count - 1 or count == 1 or positions <= WINDOW:
        return [AuditPrompt(name, text[: max(min(size, positions - new), 1)], new)]
    starts = [spare * i // (count - 1) for i in range(count)]
    parts = [new * (i + 1) // count - new * i // count for i in range(count)]
    long = len(text) - spare
    return [
        AuditPrompt(f"{name}:{begin}", text[begin : begin + long], n)
        for begin, n in zip(starts, parts, strict=True)
    ]
