"""Reads a JSON object that a model writes piece by piece, and gives it out as valid JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from json import dumps, loads
from math import isfinite

from longdraft.server.calls.format_marks import FIRST, LAST

MARKS = f"{FIRST}-{LAST}"
# characters of a string that stand for themselves
PLAIN = re.compile(f"[^\"'\\\\\\x00-\\x1f{MARKS}]+")
SPACE = re.compile(r"[ \t\r\n]+")
BARE = {
    False: re.compile(rf"[^\"\n,{{}}\[\]{MARKS}][^\"\n,{{}}\[\]<`{MARKS}]*"),
    True: re.compile(rf"[^\"\n,:{{}}\[\]{MARKS}][^\"\n,:{{}}\[\]<`{MARKS}]*"),
}
# characters that a word without quotes may have in it; by whether it is a key
WORDY = {
    False: ":'",
    True: "'",
}
HEX = re.compile(r"u[0-9a-fA-F]{0,4}")
CLOSER = {"{": "}", "[": "]"}
PYTHON = {"True": "true", "False": "false", "None": "null"}


class Value:
    """A JSON object in the making: `feed` and `close` together give a valid one, whatever comes.

    Valid JSON is unchanged. Common faults are mended: control characters and quotes inside strings
    that are not escaped, unknown escapes, single quotes, words without quotes, Python's constants,
    commas too many or too few, and brackets that are never closed. A mark ends the object wherever
    it comes.

    ends: texts that end the object outside its strings, or on a line after one that is not closed.
    Where the text ends in a part of one, `feed` leaves that part.
    """

    def __init__(self, ends: tuple[str, ...] = ()) -> None:
        self.done = False
        self._ends = ends
        self._open = list[str]()  # brackets
        self._next = "value"  # what comes next: key, colon, value, or comma
        self._comma = ""  # a comma, and space after it, until something follows that needs them
        self._quote = ""  # of the open string
        self._end = ""  # a quote that may end the string, and space after it
        self._escape = ""  # the beginning of an escape
        self._bare = ""  # a number, or a word without quotes
        self._out = list[str]()
        self._text = ""
        self._at = 0

    def feed(self, text: str) -> tuple[str, int]:
        """The text of the object that is known now, and how many characters the object took."""
        self._text = text
        self._at = 0
        while not self.done and self._at < len(text):
            char = text[self._at]
            if FIRST <= char <= LAST:
                self._finish()
            elif char in "<`" and self._may_end():
                rest = text[self._at :]
                if rest.startswith(self._ends):
                    self._finish()
                elif any(mark.startswith(rest) for mark in self._ends):
                    break  # more has to come
                else:
                    self._take(char)
            else:
                self._take(char)
        return self._given(), self._at

    def _may_end(self) -> bool:
        """Tells whether the object may end here although brackets are open."""
        return bool(self._ends) and (not self._quote or "\n" in self._end)

    def _take(self, char: str) -> None:
        if self._escape:
            self._escaped(char)
        elif self._end:
            self._after_quote(char)
        elif self._quote:
            self._quoted(char)
        else:
            self._outside(char)

    def close(self) -> str:
        """The rest of the object where the text ends."""
        if not self.done:
            self._finish()
        return self._given()

    def _given(self) -> str:
        given = "".join(self._out)
        self._out = []
        return given

    def _finish(self) -> None:
        if self._quote:
            if self._escape and not self._end:
                self._out.append(dumps(self._escape)[1:-1] if len(self._escape) > 1 else "")
            self._end_string()
        self._end_bare()
        while self._open:
            self._pop()
        self.done = True

    # Strings --------------------------------------------------------------------------------------

    def _quoted(self, char: str) -> None:
        if plain := PLAIN.match(self._text, self._at):
            self._out.append(plain[0])
            self._at = plain.end()
            return
        self._at += 1
        if char == "\\":
            self._escape = char
        elif char == self._quote:
            self._end = char
        else:
            self._out.append(char if char == "'" else dumps(char)[1:-1])

    def _escaped(self, char: str) -> None:
        """Take one more character after a backslash; the backslash of an unknown escape is text."""
        begun = self._escape + char
        if HEX.fullmatch(begun[1:]):
            self._at += 1
            self._escape = begun
            if len(begun) == 6:
                self._out.append(begun)
                self._escape = ""
            return
        if len(self._escape) > 1 or char not in "\"\\/bfnrt'":
            self._out.append(dumps(self._escape)[1:-1])
        else:
            self._at += 1
            self._out.append("'" if char == "'" else begun)
        self._escape = ""

    def _after_quote(self, char: str) -> None:
        """Decide whether a quote ended its string.

        If what follows cannot follow a string, the quote is a part of its text.
        """
        if char in " \t\r\n":
            self._at += 1
            self._end += char
        elif char in (":" if self._next == "key" else ",}]") or ("\n" in self._end and char == '"'):
            self._end_string()
        else:
            if self._quote == '"':
                self._out.append(dumps(self._end)[1:-1])
            else:
                self._out.append("'" + dumps(self._end[1:])[1:-1])
            self._end = ""

    def _end_string(self) -> None:
        self._out.append('"' + self._end[1:])
        self._quote = ""
        self._end = ""
        self._escape = ""
        self._next = "colon" if self._next == "key" else "comma"

    # Everything else ------------------------------------------------------------------------------

    def _outside(self, char: str) -> None:
        if space := SPACE.match(self._text, self._at):
            self._at = space.end()
            if self._bare:
                self._bare += space[0]
            elif self._comma:
                self._comma += space[0]
            else:
                self._out.append(space[0])
        elif (take := self._structural.get(char)) and not self._in_word(char):
            self._at += 1
            self._end_bare()
            take(char)
        elif word := BARE[self._next == "key"].match(self._text, self._at):
            self._at = word.end()
            if not self._bare:
                self._item()
            self._bare += word[0]

    def _in_word(self, char: str) -> bool:
        return bool(self._bare) and char in WORDY[self._next == "key"]

    @property
    def _structural(self) -> dict[str, Callable[[str], None]]:
        return {
            '"': self._string,
            "'": self._string,
            "{": self._push,
            "[": self._push,
            "}": self._closer,
            "]": self._closer,
            ",": self._separate,
            ":": self._colon,
        }

    def _end_bare(self) -> None:
        """Give out a word that has ended: JSON unchanged, or a string."""
        text = self._bare.rstrip()
        space = self._bare[len(text) :]
        self._bare = ""
        if text:
            is_key = self._next == "key"
            word = dumps(text, ensure_ascii=False) if is_key else _constant(text)
            self._out.append(word + space)
            self._next = "colon" if self._next == "key" else "comma"

    def _item(self) -> None:
        """Begin a key or a value: put what is missing before it."""
        if self._next == "colon":
            self._colon(":")
        elif self._next == "comma":
            self._separate(",")
        self._out.append(self._comma)
        self._comma = ""

    def _string(self, quote: str) -> None:
        self._item()
        self._quote = quote
        self._out.append('"')

    def _push(self, char: str) -> None:
        if self._open and self._open[-1] == "{" and self._next in ("key", "comma"):
            return  # no value can begin here
        self._item()
        self._open.append(char)
        self._out.append(char)
        self._next = "key" if char == "{" else "value"

    def _closer(self, char: str) -> None:
        opener = "{" if char == "}" else "["
        if opener not in self._open:
            return
        while self._pop() != opener:
            pass
        self.done = not self._open

    def _pop(self) -> str:
        """Close the innermost object or list."""
        self._comma = ""
        if self._open[-1] == "{" and self._next in ("colon", "value"):
            self._out.append(": null" if self._next == "colon" else "null")
        opener = self._open.pop()
        self._out.append(CLOSER[opener])
        self._next = "comma"
        return opener

    def _separate(self, char: str) -> None:
        if self._open[-1] == "{" and self._next in ("colon", "value"):
            self._out.append(": null" if self._next == "colon" else "null")
        elif self._next != "comma":
            return
        self._comma = char
        self._next = "key" if self._open[-1] == "{" else "value"

    def _colon(self, char: str) -> None:
        if self._next == "colon":
            self._out.append(char)
            self._next = "value"


def _constant(text: str) -> str:
    text = PYTHON.get(text, text)
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return dumps(text, ensure_ascii=False)
    return dumps(text) if isinstance(value, float) and not isfinite(value) else text
