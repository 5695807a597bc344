"""The ways in which models write calls, whatever the chat template shows, and their reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from longdraft.server.calls.answer_reader import AnswerReader, Steps
from longdraft.server.calls.format_marks import FIRST, LAST
from longdraft.server.calls.objects import calls_offered, read_object, read_objects
from longdraft.server.calls.tags import FUNCTION, FUNCTION_END, read_function
from longdraft.server.calls.value import Value

MAX_MARKS = 4  # marks that follow each other before a call
FENCE = "```"
LANGUAGES = {"", "json", "json5", "jsonc", "jsonl", "tool_call", "tool_calls", "xml"}
MARKUP = {"html", "markup", "plaintext", "text", "txt"}  # of which only tags are read
FENCED = re.compile(r"```[ \t]*([\w+-]*)[ \t]*(?=[^\w+ \t-])")
FENCE_LINE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n")
FENCING = re.compile(r"`{0,3}|```[ \t]*[\w+-]*[ \t]*")  # a part of its first line
MAX_MARK = 64  # characters of a mark
BEGINS = re.compile(f"[<`{{\\[{FIRST}-{LAST}]")  # what the beginning of a call may begin with
LINE = re.compile(r"(?:^|\n)[ \t]*\Z")
SENTENCE = ".:!?"  # ends of what may precede an object on its line


class Way(NamedTuple):
    """A way of writing calls.

    opens: the text that begins calls. closes: the text that may end them. read: reads calls at a
    place in a reader's text, or takes nothing and says False. keeps: that place is before the mark,
    not after it.
    """

    opens: str
    closes: str
    read: Callable[[AnswerReader, int], Steps[bool]]
    keeps: bool = False


class Calls(AnswerReader):
    """Reads content, and calls of the functions that are offered, in any way of writing them.

    own: the ways of the template, which are all where a grammar binds the answer. begins: there, an
    object at the beginning of the answer is a call too. Elsewhere an object is a call where
    nothing, a line's or a sentence's end precedes it, or where a closing tag follows, outside of
    other code.
    """

    def __init__(
        self,
        schemas: Mapping[str, Any],
        own: Sequence[Way],
        most: int | None = None,
        bound: bool = False,
        begins: bool = False,
    ):
        super().__init__(schemas, most, bound)
        self.own = {way.opens for way in own}
        self.begins = begins
        self.fenced = False
        self.ways = (*own, *(way for way in WAYS if not bound and way.opens not in self.own))
        self.openers = tuple(way.opens for way in self.ways if not way.keeps)
        self.closers = tuple({way.closes for way in self.ways if way.closes})

    def steps(self) -> Steps[None]:
        begin = 0  # text before it is content, or white space that precedes a call
        while not self.full:
            match = BEGINS.search(self.rest, begin)
            begin = len(self.rest) if match is None else match.start()
            before = len(self.rest[:begin].rstrip())
            self.give("content", before)
            begin -= before
            if match is None:
                if not (yield from self.more()):
                    return self.finish()
                continue
            self.opening = self.taken
            begin += yield from self._call(begin)

    def _call(self, begin: int) -> Steps[int]:
        """Read a call that may begin at a place.

        Returns how many characters after the place are content because no call begins there. A call
        is taken with what precedes it, and the place is the beginning then.
        """
        way = yield from self._way(begin)
        if way is None:
            return 1
        if way is FENCED_WAY and self.fenced:
            self.fenced = False
            return len(FENCE)
        if way is INLINE_WAY:
            if not (yield from self._begins_fence(begin)):
                return len(FENCE)
            way = FENCED_WAY
        self.ending = self.closers
        if (yield from way.read(self, begin if way.keeps else begin + len(way.opens))):
            if not self.full:
                yield from self._close(way)
            return -begin
        self.fenced = self.fenced or way is FENCED_WAY
        return len(way.opens)

    def _way(self, begin: int) -> Steps[Way | None]:
        """The way of writing calls that begins at a place."""
        while True:
            text = self.rest[begin : begin + MAX_MARK]
            before = self.last + self.rest[:begin]
            ways = self._possible(before)
            found = [way for way in ways if text.startswith(way.opens)]
            way = max(found, key=lambda way: len(way.opens), default=None)
            may_go_on = any(way.opens.startswith(text) for way in ways if way not in found)
            if may_go_on and (yield from self.more()):
                continue
            if way is not None or text[0] not in "{[":
                return way
            if self._may_begin(before):
                return OBJECTS
            return CLOSED if self._may_be_closed(text, before) else None

    def _possible(self, before: str) -> list[Way]:
        """The ways of writing calls whose mark may follow this text.

        In other code only the template's own are, because a program may contain the others.
        """
        code = self.fenced or before.endswith("`")
        ways = [way for way in self.ways if way.opens in self.own or not code]
        if self.bound:
            return ways
        if LINE.search(before):
            return [*ways, FENCED_WAY]
        text = before.rstrip()
        sentence = text.endswith(tuple(SENTENCE)) and text != before
        return [*ways, INLINE_WAY] if sentence and not self.fenced else ways

    def _begins_fence(self, begin: int) -> Steps[bool]:
        """Tells whether nothing but a language follows ``` on its line."""
        while not FENCE_LINE.match(self.rest, begin):
            if not FENCING.fullmatch(self.rest, begin) or not (yield from self.more()):
                return False
        return True

    def _may_be_closed(self, text: str, before: str) -> bool:
        """Tells whether an object in a sentence is a call if a closing tag follows it."""
        return text[0] == "{" and not (self.bound or self.fenced or before.endswith("`"))

    def _may_begin(self, before: str) -> bool:
        """Tells whether an object without a mark may be a call after this text."""
        text = before.rstrip()
        if self.bound:
            return self.begins and not text and not self.said
        space = before[len(text) :]
        return not self.fenced and (
            not text or "\n" in space or (bool(space) and text[-1] in SENTENCE)
        )

    def _close(self, way: Way) -> Steps[None]:
        """Take the marks that end calls."""
        yield from self.skip_all(self.closers)
        if way is FENCED_WAY or self.fenced:
            self.fenced = not (yield from self.skip(FENCE))


def read_marked(reader: AnswerReader, begin: int) -> Steps[bool]:
    """Read calls after a mark. False: there is none; nothing is taken."""
    return (yield from _read(reader, begin, True, 0))


def read_unmarked(reader: AnswerReader, begin: int) -> Steps[bool]:
    """Read calls that begin here."""
    return (yield from _read(reader, begin, False, MAX_MARKS))


def read_fenced(
    reader: AnswerReader, begin: int, marked: bool = False, deep: int = 0
) -> Steps[bool]:
    """Read calls in a fence of code."""
    while not (fence := FENCED.match(reader.rest, begin)):
        if not FENCING.fullmatch(reader.rest, begin) or not (yield from reader.more()):
            return False
    language = fence[1].lower()
    reader.ending = (*reader.closers, FENCE)
    if language in MARKUP:
        first = yield from reader.space(fence.end())
        tagged = first is not None and reader.rest[first] not in "{["
        return tagged and (yield from _read(reader, fence.end(), marked, deep + 1))
    return language in LANGUAGES and (yield from _read(reader, fence.end(), marked, deep + 1))


def read_closed(reader: AnswerReader, begin: int) -> Steps[bool]:
    """Read an object as a call whose opening tag is missing, if its closing tag follows."""
    value = Value()
    seen = begin
    while not value.done:
        if not calls_offered(reader, begin):
            return False
        seen += value.feed(reader.rest[seen:])[1]
        if not value.done and not (yield from reader.more()):
            return False
    while not (text := reader.rest[seen:].lstrip()).startswith(reader.closers):
        may_go_on = any(mark.startswith(text) for mark in reader.closers)
        if not may_go_on or not (yield from reader.more()):
            return False
    return (yield from read_object(reader, begin, False))


def _read(reader: AnswerReader, begin: int, marked: bool, deep: int) -> Steps[bool]:
    """Read calls.

    marked: a mark that begins calls precedes. deep: how many marks precede.
    """
    if (first := (yield from reader.space(begin))) is None:
        return False
    marks = reader.openers if reader.bound else (*reader.openers, FENCE)
    while deep < MAX_MARKS:
        text = reader.rest[first : first + MAX_MARK]
        if mark := next((mark for mark in marks if text.startswith(mark)), None):
            if mark == FENCE:
                return (yield from read_fenced(reader, first, marked, deep))
            return (yield from _read(reader, first + len(mark), True, deep + 1))
        if not any(mark.startswith(text) for mark in marks) or not (yield from reader.more()):
            break
    if reader.rest[first] in "{[":
        return (yield from read_objects(reader, first, marked))
    return reader.rest[first] == "<" and (yield from read_function(reader, first, marked))


WAYS = (  # beside that of the template
    Way("<tool_call>", "</tool_call>", read_marked),
    Way("<tools>", "</tools>", read_marked),
    Way("<function>", FUNCTION_END, read_marked),
    Way("<|python_tag|>", "", read_marked),
    Way("[TOOL_CALLS]", "", read_marked),
    Way(FUNCTION, "</tool_call>", read_unmarked, keeps=True),
)
FENCED_WAY = Way(FENCE, FENCE, read_fenced, keeps=True)
INLINE_WAY = FENCED_WAY._replace(closes="")  # after a sentence, on its line
OBJECTS = Way("{", "", read_unmarked, keeps=True)
CLOSED = Way("{", "", read_closed, keeps=True)
