"""Long texts: refused before all of them is read, if they have more tokens than fit.

Their memory is given back.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

from longdraft.models.chat import Asked, Render
from longdraft.models.templates import Templates
from longdraft.models.text import token_ids
from longdraft.server.http.problems import Problem

LONG = 1 << 16  # characters, tokens or log-probabilities: these are read one at a time
PIECE = 1 << 14  # characters
SPARE = 64  # tokens that a text may have less than a piece of it and the rest, apart
# the maximum number of tokens that /tokenize returns, if the limit is not larger
MOST_TOKENIZED = 1 << 17
LARGE = 1 << 20  # bytes of a body


def exceeds(tokenizer: Any, text: str, most: int, leave_out: str = "") -> bool:
    """Tells whether a text surely has more tokens than this.

    It is read piece by piece, and no further than needed. leave_out: characters that do not count.
    """
    count = 0
    ignored = re.compile(f"[{leave_out}]+" if leave_out else "(?!)")
    for piece in pieces(text):
        piece = ignored.sub("", piece)
        count += len(token_ids(tokenizer, piece, add_special_tokens=False)) - SPARE
        if count > most:
            return True
    return False


def pieces(text: str) -> Iterator[str]:
    """A text in pieces, cut before a space where there is one: few tokens contain a space."""
    begin = 0
    while begin < len(text):
        end = begin + PIECE
        space = text.rfind(" ", begin + PIECE // 2, end)
        if space > 0 and end < len(text):
            end = space
        yield text[begin:end]
        begin = end


def check_length(tokenizer: Any, text: str, most: int, leave_out: str = "") -> None:
    """Raises Problem for a long text that surely has more tokens than this.

    Other texts are to be counted as a whole.
    """
    if len(text) > LONG and exceeds(tokenizer, text, most, leave_out):
        excess = (
            f"the prompt has more tokens than this server's limit of {most}: give a shorter one"
        )
        raise Problem(400, excess, "prompt", "context_length_exceeded")


def within(render: Render, tokenizer: Any, most: int) -> Render:
    """A renderer of chat templates that raises Problem for prompts with surely too many tokens."""

    def rendered(asked: Asked) -> dict[str, str]:
        chat = render(asked)
        # characters of the template's control tokens, which are few
        marks = "".join(asked["marks"].values())
        check_length(tokenizer, chat.get("marked", ""), most, marks)
        return chat

    return rendered


class Renderers:
    """Two processes for chat templates (Templates).

    One is for long conversations, so that the others do not wait.
    """

    def __init__(self) -> None:
        self.short = Templates()
        self.long = Templates()

    def start(self) -> None:
        """Start the one for short conversations; the other starts with the first long one."""
        self.short.start()

    def close(self) -> None:
        self.short.close()
        self.long.close()

    def render(self, asked: Asked) -> dict[str, str]:
        is_long = size_of([asked["messages"], asked["tools"]]) > LONG
        templates = self.long if is_long else self.short
        return templates.render(asked)


def size_of(value: Any) -> int:
    """The characters of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, [*value, *value.values()]))
    return sum(map(size_of, value)) if isinstance(value, list) else 0


def _trim() -> Callable[[int], int] | None:
    """The function of glibc that returns the free memory of all threads to the system.

    None: there is another library.
    """
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


TRIM = _trim()


def give_back() -> None:
    """Return free memory to the system, which otherwise keeps what the largest requests needed."""
    if TRIM is not None:
        TRIM(0)
