"""Grammars for texts that follow a schema of strings and are not written as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from longdraft.constraints import Schemas, literal
from longdraft.errors import InputError

ANY = r"(.|\n)"
DATE, CLOCK = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "([01][0-9]|2[0-3]):[0-5][0-9]"
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
LITERAL = set("tnrfvsS.*+?()[]{}|\\/^$-\"'#&~,:;=!<>@%`_ ")  # what may follow a backslash, beside these sets
UNKNOWN = ("not", "if", "$dynamicRef")


def choices_of(schemas: Schemas, schema: Any) -> list[str] | None:
    """The only strings that a schema allows by its `enum` and `const`, in any of its parts; None: it has neither."""
    found: list[str] | None = None
    for part in schemas.parts(schema):
        sets = [part["enum"]] if isinstance(part.get("enum"), list) else []
        sets += [[part["const"]]] if "const" in part else []
        for key in ("anyOf", "oneOf"):
            ways = [choices_of(schemas, way) for way in part.get(key) or () if way is not schema]
            if ways and all(way is not None for way in ways):
                each = [text for way in ways for text in way or ()]
                sets.append([t for t in each if key == "anyOf" or each.count(t) == 1])
        for values in sets:
            texts = [value for value in dict.fromkeys(filter(lambda v: isinstance(v, str), values))]
            found = texts if found is None else [text for text in found if text in texts]
    return found


def text_rule(schemas: Schemas, schema: Any, lenient: bool) -> str | None:
    """Lark's terminal for the strings that a schema allows; None: all are. lenient: what cannot be enforced is left out.

    Raises InputError for that.
    """
    rules = list(_conditions(schemas, schema, lenient))
    return None if not rules else " & ".join(rules)


def _conditions(schemas: Schemas, schema: Any, lenient: bool) -> Iterator[str]:
    """Terminals that a text must match, every one."""
    if (choices := choices_of(schemas, schema)) is not None:
        if not choices:
            raise InputError("no text is allowed by both its enum and its other parts")
        yield f"({' | '.join(map(literal, choices))})"
    for part in schemas.parts(schema):
        least, most = (part.get(key) for key in ("minLength", "maxLength"))
        if least is not None or most is not None:
            yield f"/{ANY}{{{int(least or 0)},{'' if most is None else int(most)}}}/"
        for key, expression in (("pattern", pattern_of), ("format", FORMATS.get)):
            if key not in part:
                continue
            if (made := expression(part[key])) is not None:
                yield "/" + made.replace("/", r"\/") + "/"
            elif not lenient:
                raise InputError(
                    f"its {key} {str(part[key])[:80]!r} cannot be enforced in this model's format of calls"
                )
        yield from _ways(schemas, part, lenient)
        if not lenient and (unknown := next((key for key in UNKNOWN if key in part), None)):
            raise InputError(f"its keyword {unknown!r} cannot be enforced in this model's format of calls")


def _ways(schemas: Schemas, part: dict[str, Any], lenient: bool) -> Iterator[str]:
    """A condition for each list of alternatives, unless `choices_of` has read them."""
    for key in ("anyOf", "oneOf"):
        ways = [way for way in part.get(key) or () if "string" in schemas.types(way)]
        if not ways or all(choices_of(schemas, way) is not None for way in ways):
            continue
        if key == "oneOf" and len(ways) > 1:
            if lenient:
                continue
            raise InputError("its keyword 'oneOf' cannot be enforced in this model's format of calls")
        rules = [text_rule(schemas, way, lenient) for way in ways]
        if all(rule is not None for rule in rules):
            yield "(" + " | ".join(f"({rule})" for rule in rules) + ")"


def pattern_of(pattern: Any) -> str | None:
    """A schema's pattern, which may match anywhere, as an expression for a whole text; None for one that cannot be.

    Rust's expressions, which grammars have, know no look-around, and anchors are read at both ends alone.
    """
    if not isinstance(pattern, str):
        return None
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    begin, end = pattern.startswith("^"), bool(re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern))
    body = pattern[begin : len(pattern) - end]
    made, at, inside, depth = list[str](), 0, False, 0
    while at < len(body):
        char = body[at]
        if char == "\\":
            at += 1
            if (following := body[at : at + 1]) in SETS:
                made.append(SETS[following] if inside else f"[{SETS[following]}]")
            elif following in ("D", "W") and not inside:
                made.append(f"[^{SETS[following.lower()]}]")
            elif following in LITERAL:
                made.append("/" if following == "/" else rf"\{following}")
            else:
                return None
        elif (
            not inside and (char in "^$" or (char == "(" and body[at + 1 : at + 2] == "?" and body[at + 2] != ":"))
        ) or (not inside and char == "|" and not depth and (begin or end)):
            return None
        else:
            depth += 0 if inside else (char == "(") - (char == ")")
            inside = char != "]" if inside else char == "["
            made.append({"\n": r"\n", "\r": r"\r"}.get(char, char))
        at += 1
    return f"{'' if begin else f'{ANY}*'}({''.join(made)}){'' if end else f'{ANY}*'}"
