"""A model's answer, split as it comes into content, reasoning and calls of functions."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from json import dumps
from typing import Any, NamedTuple, TypeVar

from longdraft.server.calls.marks import UNMARKED
from longdraft.server.calls.value import Value

T = TypeVar("T")
APART = "\n\n"  # between the texts of two messages
Steps = Generator[None, None, T]  # reading that pauses where more text has to come


class Part(NamedTuple):
    """kind: content, reasoning, call (its text is the function's name) or arguments (JSON of the call `index`)."""

    kind: str
    text: str
    index: int = 0


def joined(parts: list[Part]) -> list[Part]:
    """The same with fewer parts: neighbors that continue each other are one."""
    found = list[Part]()
    for part in parts:
        if found and part.kind != "call" and found[-1][::2] == part[::2]:
            found[-1] = Part(part.kind, found[-1].text + part.text, part.index)
        else:
            found.append(part)
    return found


class Reader:
    """Its parts are final, and together are the text without the format's marks, however the text comes in pieces.

    schemas: the parameters of each function that may be called; a call of any other is content. most: after this many
    calls the answer has ended (`done`). bare: an object at the beginning may be a call without the format's marks.
    taken: how many characters have been given out or dropped.
    """

    def __init__(self, schemas: Mapping[str, Any] | None = None, most: int | None = None, bare: bool = False):
        self.schemas, self.most, self.bare = schemas or {}, most, bare
        self.rest = ""  # came, but neither given out nor dropped
        self.calls = self.taken = 0
        self.thoughts: list[tuple[int, int]] = []  # where the text was reasoning, in characters
        self.ended = self.done = False
        self.aside = ""  # text that is kept back as a whole
        self._parts: list[Part] = []
        self._said, self._apart = set[str](), set[str]()
        self._steps: Steps[None] = self.steps()

    def steps(self) -> Steps[None]:
        """Reads the whole answer. Here all of it is content."""
        while True:
            self.give("content", len(self.rest))
            if not (yield from self.more()):
                return

    def push(self, text: str) -> list[Part]:
        """What is known now that this text has come. After `done` further text has no effect."""
        if not self.done:
            self.rest += text
            next(self._steps, None)
        parts, self._parts = joined(self._parts), []
        return parts

    def end(self) -> list[Part]:
        """What is left when no more text comes."""
        self.ended = True
        return self.push("")

    # For formats --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.most is not None and self.calls >= self.most

    def more(self) -> Steps[bool]:
        """Wait for more text. False: none will come."""
        if self.ended:
            return False
        yield
        return not self.ended

    def drop(self, count: int) -> str:
        """Take this many characters without giving them out."""
        text, self.rest = self.rest[:count], self.rest[count:]
        self.taken += len(text)
        return text

    def give(self, kind: str, count: int) -> None:
        """Give out this many characters."""
        self.add(kind, self.drop(count))

    def add(self, kind: str, text: str) -> None:
        """Give out a text, without marks. kind: also "quoted", arguments inside a JSON string, or "aside"."""
        if kind == "aside":
            self.aside += text
            return
        text = text.translate(UNMARKED)
        if kind == "quoted":
            kind, text = "arguments", dumps(text, ensure_ascii=False)[1:-1]
        if not text:
            return
        if kind in self._apart:
            self._apart.remove(kind)
            text = APART + text
        self._said.add(kind)
        index = self.calls - 1 if kind == "arguments" else 0
        self._parts.append(Part(kind, text, index))

    def separate(self, kind: str) -> None:
        """Another message's text of this kind follows."""
        if kind in self._said:
            self._apart.add(kind)

    def call(self, name: str) -> None:
        """A call begins."""
        self._parts.append(Part("call", name, self.calls))
        self.calls += 1

    def space(self, begin: int = 0) -> Steps[int | None]:
        """Where the first character that is no white space is, from `begin` on. None: the text ended before one."""
        while not (text := self.rest[begin:]).strip():
            if not (yield from self.more()):
                return None
        return begin + len(text) - len(text.lstrip())

    def skip(self, mark: str) -> Steps[bool]:
        """Take white space and a mark, if they come next."""
        while True:
            text = self.rest.lstrip()
            if text.startswith(mark):
                self.drop(len(self.rest) - len(text) + len(mark))
                return True
            if not mark.startswith(text) or not (yield from self.more()):
                return False

    def skip_line(self) -> Steps[None]:
        """Take a line break, if it comes next."""
        if self.rest or (yield from self.more()):
            self.drop(self.rest.startswith("\n"))

    def until(self, marks: tuple[str, ...], kind: str, strip: bool = True) -> Steps[int | None]:
        """Give out what precedes the first of these marks. The length of that mark, or None if the text ended first.

        strip: the length includes white space before the mark. What may be a part of it is not given out until more
        has come.
        """
        while True:
            found = [(i, -len(mark)) for mark in marks if (i := self.rest.find(mark)) >= 0]
            if found:
                begin, length = min(found)
                before = self.rest[:begin].rstrip() if strip else self.rest[:begin]
                self.give(kind, len(before))
                return begin - len(before) - length
            keep = max((n for m in marks for n in range(1, len(m)) if self.rest.endswith(m[:n])), default=0)
            free = self.rest[: len(self.rest) - keep]
            self.give(kind, len(free.rstrip() if strip else free))
            if not (yield from self.more()):
                return None

    def arguments(self) -> Steps[None]:
        """Give out a JSON object that comes next as the arguments of the last call."""
        value = Value()
        while not value.done:
            text, used = value.feed(self.rest)
            self.drop(used)
            self.add("arguments", text)
            if not value.done and not (yield from self.more()):
                return

    def finish(self) -> None:
        """Give out what is left at the end: content, or nothing if it is white space after a call."""
        if self.calls and not self.rest.strip():
            self.drop(len(self.rest))
        self.give("content", len(self.rest))

    def think(self, marks: tuple[str, str], opened: bool) -> Steps[None]:
        """Give out reasoning at the beginning of an answer. opened: the prompt has its first mark already.

        Some models write that mark once more.
        """
        begin, (first, last) = self.taken, marks
        if not (yield from self.skip(first)) and not opened:
            return
        self.drop((yield from self.space()) or 0)
        length = yield from self.until((last,), "reasoning")
        if length is None:
            self.give("reasoning", len(self.rest.rstrip()))
            self.drop(len(self.rest))
        else:
            self.drop(length)
        self.thoughts.append((begin, self.taken))
        self.drop((yield from self.space()) or 0)
