"""Splits a model's answer, as it comes, into content, reasoning and calls of functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Mapping
from json import dumps
from typing import Any, NamedTuple, TypeVar

from longdraft.server.calls.format_marks import UNMARKED
from longdraft.server.calls.value import Value

T = TypeVar("T")
APART = "\n\n"  # between the texts of two messages
Steps = Generator[None, None, T]  # reading that pauses where more text has to come


class AnswerPart(NamedTuple):
    """A part of an answer.

    kind: content, reasoning, call (its text is the function's name) or arguments (JSON of the call
    `index`).
    """

    kind: str
    text: str
    index: int = 0


def joined(parts: list[AnswerPart]) -> list[AnswerPart]:
    """The same parts, with neighbors that continue each other joined into one."""
    merged = list[AnswerPart]()
    for part in parts:
        if merged and part.kind != "call" and merged[-1][::2] == part[::2]:
            merged[-1] = AnswerPart(part.kind, merged[-1].text + part.text, part.index)
        else:
            merged.append(part)
    return merged


def begun(text: str, marks: Iterable[str]) -> int:
    """The number of a text's last characters that may be the beginning of one of these marks."""
    longest = 0
    for mark in marks:
        for length in range(1, len(mark)):
            if text.endswith(mark[:length]):
                longest = max(longest, length)
    return longest


class AnswerReader:
    """Splits an answer into parts: together they are its text without the format's marks.

    Parts are final, and do not depend on the pieces in which the text comes.

    schemas: the parameters of each function that may be called; a call of any other is content.
    most: after this many calls the answer has ended (`done`). bound: a grammar binds the answer, so
    that only the template's own way of writing calls is read as one. taken: how many characters
    have been given out or dropped.
    """

    def __init__(
        self, schemas: Mapping[str, Any] | None = None, most: int | None = None, bound: bool = False
    ):
        self.schemas = schemas or {}
        self.most = most
        self.bound = bound
        self.rest = ""  # came, but neither given out nor dropped
        self.calls = 0
        self.taken = 0
        self.said = 0  # characters of content
        self.opening = 0  # where what may be a call begins, of the characters taken
        self.run: int | None = None  # where the calls begin that nothing has followed yet
        self.last = ""  # the last character of the content since the last call
        # tags that calls may stand between
        self.openers: tuple[str, ...] = ()
        self.closers: tuple[str, ...] = ()
        self.ending: tuple[str, ...] = ()  # what ends an object on a line after it
        self.thoughts: list[tuple[int, int]] = []  # where the text was reasoning, in characters
        self.ended = False
        self.done = False
        self.cut = False  # the text ended because it may not be longer
        self.aside = ""  # text that is kept back as a whole
        # of characters of content, in the content and in the text
        self._places = list[tuple[int, int]]()
        self._parts: list[AnswerPart] = []
        self._said = set[str]()
        self._apart = set[str]()
        self._steps: Steps[None] = self.steps()

    def steps(self) -> Steps[None]:
        """Reads the whole answer. Here all of it is content."""
        while True:
            self.give("content", len(self.rest))
            if not (yield from self.more()):
                return

    def push(self, text: str) -> list[AnswerPart]:
        """The parts that are known now that this text has come.

        After `done` further text has no effect.
        """
        if not self.done:
            self.rest += text
            next(self._steps, None)
        parts = joined(self._parts)
        self._parts = []
        return parts

    def end(self, cut: bool = False) -> list[AnswerPart]:
        """The parts that are left when no more text comes.

        cut: because of a limit; then a call that is not complete stays so.
        """
        self.ended = True
        self.cut = cut
        return self.push("")

    def place(self, offset: int) -> int:
        """The position in the text of a character of the content."""
        count = bisect_right(self._places, offset, key=lambda pair: pair[0])
        said, taken = self._places[count - 1] if count else (0, 0)
        return taken + offset - said

    # For formats ----------------------------------------------------------------------------------

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
        text = self.rest[:count]
        self.rest = self.rest[count:]
        self.taken += len(text)
        return text

    def give(self, kind: str, count: int) -> None:
        """Give out this many characters."""
        taken = self.taken
        said = self.said
        self.add(kind, self.drop(count))
        if self.said > said:
            self._places.append((self.said - count, taken))

    def add(self, kind: str, text: str) -> None:
        """Give out a text, without marks.

        kind: also "quoted", arguments inside a JSON string, or "aside".
        """
        if kind == "aside":
            self.aside += text
            return
        text = text.translate(UNMARKED)
        if kind == "quoted":
            kind = "arguments"
            text = dumps(text, ensure_ascii=False)[1:-1]
        if not text:
            return
        if kind in self._apart:
            self._apart.remove(kind)
            text = APART + text
        self._said.add(kind)
        if kind == "content":
            self.said += len(text)
            self.last = text[-1]
            if not text.isspace():
                self.run = None
        index = self.calls - 1 if kind == "arguments" else 0
        self._parts.append(AnswerPart(kind, text, index))

    def separate(self, kind: str) -> None:
        """Another message's text of this kind follows."""
        if kind in self._said:
            self._apart.add(kind)

    def call(self, name: str) -> None:
        """A call begins."""
        self.last = ""
        if self.run is None:
            self.run = self.opening
        self._parts.append(AnswerPart("call", name, self.calls))
        self.calls += 1

    def space(self, begin: int = 0) -> Steps[int | None]:
        """The position of the first character from `begin` on that is no white space.

        None: the text ended before one.
        """
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

    def skip_all(self, marks: tuple[str, ...]) -> Steps[None]:
        """Take all of these marks that come next."""
        while True:
            text = self.rest.lstrip()
            if mark := next((mark for mark in marks if text.startswith(mark)), None):
                self.drop(len(self.rest) - len(text) + len(mark))
            elif not any(mark.startswith(text) for mark in marks) or not (yield from self.more()):
                return

    def until(self, marks: tuple[str, ...], kind: str, strip: bool = True) -> Steps[int | None]:
        """Give out what precedes the first of these marks.

        Returns the length of that mark, or None if the text ended first. strip: the length includes
        white space before the mark. What may be a part of it is not given out until more has come.
        """
        while True:
            first = self._first(marks)
            end = len(self.rest) - self._begun(marks) if first is None else first[0]
            free = len(self.rest[:end].rstrip()) if strip else end
            self.give(kind, free)
            if first is not None:
                return first[0] - free + first[1]
            if not (yield from self.more()):
                return None

    def _first(self, marks: tuple[str, ...]) -> tuple[int, int] | None:
        """The position of the first of these marks, and its length."""
        places = [(i, -len(mark)) for mark in marks if (i := self.rest.find(mark)) >= 0]
        if not places:
            return None
        begin, length = min(places)
        return begin, -length

    def _begun(self, marks: tuple[str, ...]) -> int:
        """The number of last characters that may be a part of a mark."""
        return begun(self.rest, marks)

    def arguments(self) -> Steps[None]:
        """Give out a JSON object that comes next as the arguments of the last call."""
        value = Value(self.ending)
        while not value.done:
            text, used = value.feed(self.rest)
            self.drop(used)
            self.add("arguments", text)
            if not value.done and not (yield from self.more()):
                self.drop(len(self.rest))  # a part of a mark that would have ended the object
                if not self.cut:
                    self.add("arguments", value.close())
                return

    def finish(self) -> None:
        """Give out what is left at the end.

        It is content, or nothing if it is white space after a call.
        """
        if self.calls and not self.rest.strip():
            self.drop(len(self.rest))
        self.give("content", len(self.rest))

    def think(
        self, marks: tuple[str, str], opened: bool, watch: AnswerReader | None
    ) -> Steps[None]:
        """Give out reasoning at the beginning of an answer.

        opened: the prompt has its first mark already. Some models write that mark once more. watch:
        see `reason`.
        """
        begin = self.taken
        first, last = marks
        if not (yield from self.skip(first)) and not opened:
            return
        self.drop((yield from self.space()) or 0)
        length = yield from self.reason((last,), watch)
        if length is None:
            self.drop(len(self.rest))
        else:
            self.drop(length)
        self.thoughts.append((begin, self.taken))
        self.drop((yield from self.space()) or 0)

    def reason(self, marks: tuple[str, ...], watch: AnswerReader | None) -> Steps[int | None]:
        """Give out reasoning up to a mark, as `until` does.

        If it ends without a mark, although no limit cut it, the calls in it are made.

        watch: reads the reasoning as if it were the answer. Calls that end it are not given out as
        reasoning.
        """
        begin = self.taken
        seen = 0
        called = list[AnswerPart]()
        while True:
            first = self._first(marks)
            end = len(self.rest) - self._begun(marks) if first is None else first[0]
            safe = end
            if watch is not None and first is None:
                called += watch.push(self.rest[seen - (self.taken - begin) : end])
                seen = self.taken - begin + end
                safe = min(
                    end, (watch.taken if watch.run is None else watch.run) - (self.taken - begin)
                )
            before = len(self.rest[:safe].rstrip())
            self.give("reasoning", before)
            if first is not None:
                return first[0] - before + first[1]
            if not (yield from self.more()):
                break
        if watch is not None and not self.cut:
            called += watch.push(self.rest[seen - (self.taken - begin) :]) + watch.end()
            if watch.calls:
                self.give(
                    "reasoning",
                    len(self.rest) if watch.run is None else watch.run - (self.taken - begin),
                )
                self._call_again(called)
        self.give("reasoning", len(self.rest.rstrip()))
        return None

    def _call_again(self, parts: list[AnswerPart]) -> None:
        """Make the calls that another reader has read, as many as there may be."""
        self.drop(len(self.rest))
        made = [
            p
            for p in parts
            if p.kind in ("call", "arguments") and (self.most is None or p.index < self.most)
        ]
        self._parts += made
        self.calls = sum(part.kind == "call" for part in made)
