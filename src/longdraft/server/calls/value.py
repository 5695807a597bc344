"""Where a JSON object that comes in pieces ends."""

from __future__ import annotations

import re
from json import dumps

from longdraft.server.calls.marks import FIRST, LAST

STOPS = re.compile(f'["\\\\{{}}\\[\\]\\x00-\\x1f{FIRST}-{LAST}]')


class Value:
    """Says which characters belong to an object; whether these are valid JSON is not checked.

    A line break or another control character inside a string, which JSON does not allow and models write, is escaped.
    A mark ends the object wherever it comes. depth: how many objects and lists are open at first.
    """

    def __init__(self, depth: int = 0):
        self.depth, self.done = depth, False
        self._quoted = self._escaped = False

    def feed(self, text: str) -> tuple[str, int]:
        """The object's next characters as they should have been written, and how many of the text they are."""
        parts, at = list[str](), 0
        while not self.done and at < len(text):
            if self._escaped:
                self._escaped = False
                parts.append(text[at])
                at += 1
                continue
            stop = STOPS.search(text, at)
            end = len(text) if stop is None else stop.start()
            parts.append(text[at:end])
            at = end
            if stop is not None:
                parts.append(self._one(stop[0]))
                at += not FIRST <= stop[0] <= LAST
        return "".join(parts), at

    def _one(self, char: str) -> str:
        if FIRST <= char <= LAST:
            self.done = True
            return ""
        if self._quoted:
            self._escaped, self._quoted = char == "\\", char != '"'
            return dumps(char)[1:-1] if char < " " else char
        self._quoted = char == '"'
        self.depth += (char in "{[") - (char in "}]")
        self.done = self.depth <= 0 and char in "}]"
        return char
