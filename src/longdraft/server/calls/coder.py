"""Calls as tags: <tool_call><function=NAME><parameter=P>value</parameter></function></tool_call> (Qwen 3.5, Coder)."""

from __future__ import annotations

import re
from json import dumps, loads
from typing import Any

from longdraft.constraints import json_rule, literal
from longdraft.server.calls.format import Format
from longdraft.server.calls.grammar import Asked, Rules, schema_of
from longdraft.server.calls.hermes import CLOSE, OPEN, tagged
from longdraft.server.calls.reader import Reader, Steps
from longdraft.server.tools import Function

HEAD = re.compile(r"\s*<function=([\w.-]{1,64})>")
BEGUN = re.compile(r"\s*(?:$|<(?:f|fu|fun|func|funct|functi|functio|function|function=[\w.-]{0,64})?$)")
PARAMETER, VALUE_END, FUNCTION_END = "<parameter=", "</parameter>", "</function>"
LINE, END = literal("\n"), literal(f"\n{VALUE_END}\n")


def types_of(schema: Any) -> set[str]:
    """The types that a parameter may have, as far as its schema says."""
    if not isinstance(schema, dict):
        return set()
    own = schema.get("type", [])
    found = {own} if isinstance(own, str) else {t for t in own if isinstance(t, str)}
    if "enum" in schema and isinstance(schema["enum"], list) and all(isinstance(x, str) for x in schema["enum"]):
        found.add("string")
    return found.union(*(types_of(s) for key in ("anyOf", "oneOf") for s in _listed(schema.get(key))))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Coder(Format):
    """Arguments are given out as the JSON that the tags stand for. A value is text where its parameter is a string."""

    names = (OPEN, CLOSE)

    def read(self, reader: Reader) -> Steps[None]:
        while not reader.full:
            begin = yield from reader.until((self.marks[OPEN],), "content")
            if begin is None:
                return reader.finish()
            if not (yield from self._call(reader, begin)):
                reader.give("content", begin)
            elif not reader.full:
                yield from reader.skip(self.marks[CLOSE])

    def _call(self, reader: Reader, begin: int) -> Steps[bool]:
        while not (head := HEAD.match(reader.rest, begin)):
            if not BEGUN.match(reader.rest, begin) or not (yield from reader.more()):
                return False
        if head[1] not in reader.schemas:
            return False
        reader.drop(head.end())
        reader.call(head[1])
        schema = reader.schemas[head[1]]
        fields = schema.get("properties") if isinstance(schema, dict) else None
        before = "{"
        while (yield from reader.skip(PARAMETER)):
            while (end := reader.rest.find(">")) < 0:
                if not (yield from reader.more()):
                    return True
            key = reader.drop(end + 1)[:-1]
            reader.add("arguments", f"{before}{dumps(key, ensure_ascii=False)}: ")
            before = ", "
            types = types_of(fields.get(key)) if isinstance(fields, dict) else set[str]()
            if not (yield from self._value(reader, types)):
                return True
        if reader.ended and not reader.rest.strip():
            return True
        reader.add("arguments", "{}" if before == "{" else "}")
        yield from reader.skip(FUNCTION_END)
        return True

    def _value(self, reader: Reader, types: set[str]) -> Steps[bool]:
        """Give out a parameter's value. False: the text ended in it."""
        string = types == {"string"}
        if string:
            reader.add("arguments", '"')
        yield from reader.skip_line()
        reader.aside = ""
        marks = (f"\n{VALUE_END}", VALUE_END)
        length = yield from reader.until(marks, "quoted" if string else "aside", strip=False)
        if length is None:
            return False
        reader.drop(length)
        reader.add("arguments", '"' if string else _json(reader.aside, types))
        return True

    def grammar(self, rules: Rules, asked: Asked) -> str:
        rules.lazy("value", VALUE_END)
        one = rules.choice("function", [self._function(f) for f in asked.functions])
        rest = rules.add("calls", f"{LINE} {one} {LINE} {self.marks.lark(CLOSE)}")
        return tagged(rules, asked, self.marks, rest)

    def _function(self, function: Function) -> str:
        schema = schema_of(function)
        needed, parts = schema.get("required") or [], [literal(f"<function={function.name}>\n")]
        for key, about in schema.get("properties", {}).items():
            if types_of(about) == {"string"}:
                options = about.get("enum") if isinstance(about, dict) else None
                value = f"({' | '.join(literal(x) for x in options)}) {END}" if options else f"value {LINE}"
            else:
                about = about if isinstance(about, dict) else {}
                shared = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
                value = f"{json_rule(about | shared, lenient=not function.strict)} {END}"
            part = literal(f"{PARAMETER}{key}>\n") + f" {value}"
            parts.append(part if key in needed else f"({part})?")
        return " ".join([*parts, literal(FUNCTION_END)])


def _json(text: str, types: set[str]) -> str:
    """A value as JSON: what it says as JSON where that is one of its types, and otherwise a string."""
    if "boolean" in types and text.strip() in ("True", "False"):
        text = text.lower()
    if "null" in types and text.strip() == "None":
        return "null"
    try:
        value = loads(text)
        if isinstance(value, float) and dumps(value) in ("NaN", "Infinity", "-Infinity"):
            raise ValueError("no number of JSON")
    except (ValueError, RecursionError):
        return dumps(text, ensure_ascii=False)
    if types and "string" in types and not _is_one(value, types):
        return dumps(text, ensure_ascii=False)
    return dumps(value, ensure_ascii=False)


def _is_one(value: Any, types: set[str]) -> bool:
    names = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"}, dict: {"object"}}
    return bool(types & (names.get(type(value)) or {"null" if value is None else "string"}))
