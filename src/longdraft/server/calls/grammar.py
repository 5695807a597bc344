"""Grammars, in llguidance's kind of Lark, in which every text is calls that a format's reader can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Any

from longdraft.server.calls.marks import Marks
from longdraft.server.tools import Function

ANY = r"/(.|\n)*/"
SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}  # as json.dumps writes it


def literal(text: str) -> str:
    """A text in a grammar."""
    return dumps(text)


def schema_of(function: Function) -> dict[str, Any]:
    """What a function's arguments must be: an object, and one without fields if no parameters are given.

    What a schema asks for that cannot be enforced is an error for a strict function and is left out for another.
    """
    given = function.parameters or {"properties": {}, "additionalProperties": False}
    return given | {"type": "object", "x-guidance": SPACING | ({} if function.strict else {"lenient": True})}


def object_rule(function: Function, key: str = "arguments") -> str:
    """A call as an object."""
    head = f'{{"name": {dumps(function.name)}, "{key}": '
    return f"{literal(head)} {json_rule(schema_of(function))} {literal('}')}"


def json_rule(schema: dict[str, Any]) -> str:
    return f"%json {dumps(schema)}"


@dataclass
class Rules:
    """A grammar in the making: rules by name."""

    lines: list[str] = field(default_factory=list)

    def add(self, name: str, body: str) -> str:
        self.lines.append(f"{name}: {body}")
        return name.split("[")[0]

    def choice(self, name: str, bodies: Sequence[str]) -> str:
        return self.add(name, " | ".join(self.add(f"{name}_{i}", body) for i, body in enumerate(bodies)))

    def upto(self, name: str, marks: Marks, mark: str) -> str:
        """Any text up to a mark, and the mark."""
        ways = [f"{self.any()} {marks.lark(mark)}"] if mark in marks.ids else []
        if marks.spelled(mark):
            ways.append(self.lazy(f"{name}_spelled", mark))
        return self.add(name, " | ".join(ways))

    def lazy(self, name: str, end: str) -> str:
        """Any text up to the first place where it has this end."""
        return self.add(f"{name}[lazy]", f"{self.any()} {literal(end)}")

    def any(self) -> str:
        if f"TEXT: {ANY}" not in self.lines:
            self.add("TEXT", ANY)
        return "TEXT"

    def text(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self.lines]) + "\n"


@dataclass(frozen=True)
class Asked:
    """What an answer must be. least: how many calls it has at least, 0 or 1. many: whether there may be several."""

    functions: Sequence[Function]
    least: int
    many: bool

    def calls(self, one: str, separator: str) -> str:
        """One call, or several."""
        return f"{one} ({separator} {one})*" if self.many else one
