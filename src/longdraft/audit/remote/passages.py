"""The texts that an audit sends: prose, prose that begins again, and a phrase over and over, after
which drafts are copied and accepted even when tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHARACTERS = 4  # of English, in a token
PHRASES = 2  # of each source
PHRASE = 48  # characters of a phrase, at most


@dataclass(frozen=True)
class RemotePassage:
    """A prompt, and its length in tokens as it was asked for."""

    name: str
    length: int
    text: str
    sampled: bool = False  # whether samples are drawn after it before others


def passages(sources: Sequence[tuple[str, str]], lengths: Sequence[int]) -> list[RemotePassage]:
    """Two prompts of each source and length: a piece of it, and a piece that begins again; and two
    phrases over and over, of the smallest length.
    """
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
        for i in range(PHRASES):
            text = _over_and_over(source, i, lengths[0] * CHARACTERS)
            made.append(RemotePassage(f"{name} phrase {i + 1}", lengths[0], text, True))
    return made


def _over_and_over(source: str, number: int, size: int) -> str:
    """A few words of the source, repeated, and the first half of them once more."""
    words = " ".join(source[number * len(source) // PHRASES :][: 4 * PHRASE].split()).split()[1:]
    phrase = ""
    for word in words or [source.strip()]:
        if phrase and len(phrase) + len(word) >= PHRASE:
            break
        phrase += word + " "
    times = max(2, size // len(phrase))
    half = phrase[: phrase.rindex(" ", 0, len(phrase) // 2 + 1)] if " " in phrase[:-1] else ""
    return (phrase * times + half).rstrip()
