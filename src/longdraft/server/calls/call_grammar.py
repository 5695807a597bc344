"""Makes grammars in which every text is calls that a format's reader can read.

They are written in llguidance's variant of Lark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Any

from longdraft.constraints import closed, json_rule, literal
from longdraft.server.calls.format_marks import Marks
from longdraft.server.openai.tools import Function

ANY = r"/(.|\n)*/"


# may name other arguments
OPEN = {
    "additionalProperties",
    "patternProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
}


def schema_of(function: Function) -> dict[str, Any]:
    """The schema of a function's arguments: an object with no other properties than its named ones.

    Other properties are allowed where the schema says so. The same holds for objects inside it.
    """
    given = function.parameters or {"properties": {}}
    named = {} if OPEN & given.keys() else {"properties": {}}
    return closed(named | given | {"type": "object"})


def arguments_rule(function: Function) -> str:
    """The rule for a function's arguments.

    A keyword that cannot be enforced is an error for a strict function, and left out for another.
    """
    return json_rule(schema_of(function), lenient=not function.strict)


def object_rule(function: Function, key: str = "arguments") -> str:
    """The rule for a call as an object."""
    head = f'{{"name": {dumps(function.name)}, "{key}": '
    return f"{literal(head)} {arguments_rule(function)} {literal('}')}"


@dataclass
class GrammarRules:
    """A grammar in the making: its rules by name."""

    lines: list[str] = field(default_factory=list)

    def add(self, name: str, body: str) -> str:
        if (line := f"{name}: {body}") not in self.lines:
            self.lines.append(line)
        return name.split("[")[0]

    def choice(self, name: str, bodies: Sequence[str]) -> str:
        return self.add(
            name, " | ".join(self.add(f"{name}_{i}", body) for i, body in enumerate(bodies))
        )

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
        return self.add("TEXT", ANY)

    def text(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self.lines]) + "\n"


@dataclass(frozen=True)
class RequiredCalls:
    """The calls that an answer must have.

    least: the minimum number of calls, 0 or 1. many: whether there may be several.
    """

    functions: Sequence[Function]
    least: int
    many: bool

    def calls(self, call: str, separator: str) -> str:
        """The rule for one call, or several."""
        return f"{call} ({separator} {call})*" if self.many else call
