"""The texts that an audit sends: prose, and prose that begins again, which drafts can copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHARACTERS = 4  # of English, in a token


@dataclass(frozen=True)
class RemotePassage:
    """A prompt, and its length in tokens as it was asked for."""

    name: str
    length: int
    text: str


def passages(sources: Sequence[tuple[str, str]], lengths: Sequence[int]) -> list[RemotePassage]:
    """Two prompts of each source and length: a piece of it, and a piece that begins again."""
    made = list[RemotePassage]()
    for name, source in sources:
        for i, length in enumerate(lengths):
            size = length * CHARACTERS
            begin = (i * len(source)) // (2 * len(lengths))
            piece = source[begin : begin + size]
            if len(piece) < size:
                piece = (source * (size // len(source) + 1))[:size]
            made.append(RemotePassage(f"{name}, {length} tokens", length, piece))
            once = piece[: 2 * size // 3]
            again = once[: size - len(once)]
            made.append(
                RemotePassage(f"{name} repeated, {length} tokens", length, f"{once}\n\n{again}")
            )
    return made
