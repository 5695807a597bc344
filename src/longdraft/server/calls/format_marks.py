"""Special tokens that a format needs to see in an answer's text, which otherwise has none."""

from __future__ import annotations

from collections.abc import Iterable
from json import dumps
from typing import Any

from longdraft.models.text import Detokenizer

# noncharacters, which Unicode keeps for the inside of programs
FIRST = "\ufdd2"
LAST = "\ufdef"
UNMARKED: dict[int, None] = dict.fromkeys(range(ord(FIRST), ord(LAST) + 1))  # for str.translate
HIDDEN = dict.fromkeys(UNMARKED, "\ufffd")


class Marks:
    """The token of each mark of a format, if the mark is a token.

    A mark that is a special token is one character in an answer's text. One that is an added token
    not marked special, or ordinary text in this vocabulary, stays unchanged there.
    """

    def __init__(self, tokenizer: Any, names: Iterable[str]):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        added = {} if backend is None else backend.get_added_tokens_decoder()
        ids = {token.content: id for id, token in added.items()}
        self.ids = {name: ids[name] for name in names if name in ids}
        special = [name for name, id in self.ids.items() if added[id].special]
        self.signs = {name: chr(ord(FIRST) + i) for i, name in enumerate(special)}
        self.shown = {self.ids[name]: sign for name, sign in self.signs.items()}

    def __getitem__(self, name: str) -> str:
        """The text that stands for a mark in an answer."""
        return self.signs.get(name, name)

    def lark(self, name: str) -> str:
        """A mark in a grammar: llguidance reads added tokens, special or not, only by their ids."""
        return f"<[{self.ids[name]}]>" if name in self.ids else dumps(name)

    def spelled(self, name: str) -> bool:
        """Tells whether other tokens that spell a mark are read as the mark."""
        return name not in self.signs


class MarkedText:
    """A Detokenizer whose text also has the characters that stand for marks.

    No other text has these characters.
    """

    def __init__(self, tokenizer: Any, shown: dict[int, str]):
        self.tokenizer = tokenizer
        self.shown = shown
        self.before = 0
        self._text = Detokenizer(tokenizer)

    @property
    def open(self) -> str:
        return self._text.open.translate(HIDDEN)

    def push(self, tokens: list[int]) -> str:
        text = ""
        for token in tokens:
            if (mark := self.shown.get(token)) is None:
                text += self._text.push([token]).translate(HIDDEN)
                self.before = self._text.before
            else:
                rest = self.flush()
                text += rest + mark
                self.before = len(rest)
                self._text = Detokenizer(self.tokenizer)
        return text

    def flush(self) -> str:
        return self._text.flush().translate(HIDDEN)
