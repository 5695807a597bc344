"""Grammars for texts that follow a schema of strings and are not written as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from longdraft.constraints import Schemas, literal, ways_of
from longdraft.errors import InputError

ANY = r"(.|\n)"
MAX_LIMIT = 1 << 16  # characters of a limit that can be enforced
MAX_ALTERNATIVES = 1 << 16  # characters of alternatives
PIECES = re.compile(r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]|\(\?.|[\s\S]")
CHARS = re.compile(r"\\[\s\S]|[\s\S]")
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"{CLOCK}:[0-5][0-9](\.[0-9]+)?(Z|[+-]{CLOCK})"
BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
}
SETS = {"d": "0-9", "w": "A-Za-z0-9_"}  # of ECMAScript, where they are ASCII
# what may follow a backslash, beside these sets
LITERAL = set("tnrfvsS.*+?()[]{}|\\/^$-\"'#&~,:;=!<>@%`_ ")
UNKNOWN = ("not", "if", "$dynamicRef")


class Texts:
    """The strings that schemas in a whole one allow, as Lark's terminals.

    lenient: a condition that cannot be enforced is left out; otherwise it raises InputError.
    """

    def __init__(self, schemas: Schemas, lenient: bool):
        self.schemas = schemas
        self.lenient = lenient
        self._choices = dict[int, tuple[Any, list[str] | None]]()  # by a schema's identity
        self._rules = dict[int, tuple[Any, str | None]]()

    def choices(self, schema: Any) -> list[str] | None:
        """The only strings by `enum` and `const` in any part of a schema; None: it has neither."""
        if (known := self._choices.get(id(schema))) is not None:
            return known[1]
        self._choices[id(schema)] = schema, None
        allowed: list[str] | None = None
        for part in self.schemas.parts(schema):
            sets = [part["enum"]] if isinstance(part.get("enum"), list) else []
            sets += [[part["const"]]] if "const" in part else []
            for key, ways in ways_of(part):
                several = [self.choices(way) for way in ways]
                each = list[str]()
                for texts in several:
                    each += texts or ()
                once = [text for text in each if key == "anyOf" or each.count(text) == 1]
                sets += [] if None in several else [once]
            for values in sets:
                texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
                allowed = texts if allowed is None else [text for text in allowed if text in texts]
        self._choices[id(schema)] = schema, allowed
        return allowed

    def rule(self, schema: Any) -> str | None:
        """A terminal for the strings that a schema allows; None: all are."""
        if (known := self._rules.get(id(schema))) is not None:
            return known[1]
        self._rules[id(schema)] = schema, None
        rules = list(self._conditions(schema))
        self._rules[id(schema)] = schema, " & ".join(rules) or None
        return self._rules[id(schema)][1]

    def _conditions(self, schema: Any) -> Iterator[str]:
        """Terminals that a text must match, every one."""
        if (choices := self.choices(schema)) is not None:
            if not choices:
                raise InputError("no text is allowed by both its enum and its other parts")
            yield any_of(choices)
        for part in self.schemas.parts(schema):
            least = _count(part.get("minLength"))
            most = _count(part.get("maxLength"))
            if least or most is not None:
                yield f"/{ANY}{{{least or 0},{'' if most is None else most}}}/"
            for key, expression in (("pattern", pattern_of), ("format", FORMATS.get)):
                if (said := part.get(key)) is None:
                    continue
                if isinstance(said, str) and (made := expression(said)) is not None:
                    yield "/" + made.replace("/", r"\/") + "/"
                else:
                    self._refuse(f"{key} {str(said)[:80]!r}")
            yield from self._ways(part)
            if unknown := next((key for key in UNKNOWN if key in part), None):
                self._refuse(f"keyword {unknown!r}")

    def _ways(self, part: dict[str, Any]) -> Iterator[str]:
        """A condition for each list of alternatives, unless `choices` has read them."""
        for key, ways in ways_of(part):
            ways = [way for way in ways if "string" in self.schemas.types(way)]
            if not ways or all(self.choices(way) is not None for way in ways):
                continue
            if key == "oneOf" and len(ways) > 1:
                self._refuse("keyword 'oneOf'")
                continue
            rules = [self.rule(way) for way in ways]
            several = list(dict.fromkeys(rules))
            written = " | ".join(f"({rule})" for rule in several)
            if len(written) > MAX_ALTERNATIVES:
                self._refuse(f"alternatives of {len(written)} characters")
            elif None not in rules:
                yield f"({written})" if len(several) > 1 else str(several[0])

    def _refuse(self, condition: str) -> None:
        if not self.lenient:
            raise InputError(f"its {condition} cannot be enforced in this model's format of calls")


def any_of(choices: list[str]) -> str:
    return f"({' | '.join(map(literal, choices))})"


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < MAX_LIMIT else None


def pattern_of(pattern: str) -> str | None:
    """A schema's pattern, which may match anywhere, as an expression for a whole text.

    None: it cannot be one. Rust's expressions, which grammars have, know no look-around, and
    anchors are read only at both ends.
    """
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    begin = pattern.startswith("^")
    end = bool(re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern))
    pieces = PIECES.findall(pattern[begin : len(pattern) - end])
    made = list[str]()
    depth = 0
    for piece in pieces:
        depth += piece.startswith("(") - (piece == ")")
        alone = piece in ("^", "$") or (piece == "|" and not depth and (begin or end))
        written = None if alone or (piece.startswith("(?") and piece != "(?:") else _piece(piece)
        if written is None:
            return None
        made.append(written)
    return f"{'' if begin else f'{ANY}*'}({''.join(made)}){'' if end else f'{ANY}*'}"


def _piece(piece: str) -> str | None:
    """A piece of an expression in Rust's notation."""
    if piece.startswith("[") and len(piece) > 1:
        members = list[str]()
        for char in CHARS.findall(piece[1:-1]):
            member = _member(char)
            if member is None:
                return None
            members.append(member)
        return "[" + "".join(members) + "]"
    if piece.startswith("\\"):
        return _escape(piece, "[{}]")
    return {"\n": r"\n", "\r": r"\r"}.get(piece, piece)


def _member(char: str) -> str | None:
    """A character of a set, or an escape in it, in Rust's notation."""
    if char.startswith("\\"):
        return _escape(char, "{}")
    return rf"\{char}" if char in "[&~" else char


def _escape(escape: str, around: str) -> str | None:
    """An escape of ECMAScript in Rust's notation.

    around: the set of characters around it, with {} for its content.
    """
    char = escape[1:]
    if char in SETS:
        return around.format(SETS[char])
    if char in ("D", "W") and around != "{}":
        return f"[^{SETS[char.lower()]}]"
    if char not in LITERAL:
        return None
    return "/" if char == "/" else escape
