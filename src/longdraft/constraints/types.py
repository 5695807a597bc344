"""Reads what a schema says of a value in all its parts: in references, `allOf` and `anyOf`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
MAX_PARTS = 256  # parts that describe one value together
MAX_NESTING = 32  # alternatives in alternatives, which references can make endless
IMPLIED = {  # keywords of one type alone; without `type`, a schema that has one means that type
    "string": ("pattern", "minLength", "maxLength", "format", "contentEncoding"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
    ),
}


def type_of(value: Any) -> str:
    """A value's type; "integer" for a number that is one."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}[
        type(value)
    ]


def referred(place: Any, root: Any) -> Any:
    """The schema to which a `$ref` refers in the whole one; None for anything outside."""
    if not isinstance(place, str) or not (place == "#" or place.startswith("#/")):
        return None
    node = root
    for step in place[2:].split("/") if place != "#" else ():
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(step)] if step.isdecimal() and int(step) < len(node) else None
        elif isinstance(node, dict):
            node = node.get(step)
        else:
            return None
    return node


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def ways_of(part: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of schemas of which a value must follow one, and their keywords."""
    yield from ((key, ways) for key in ("anyOf", "oneOf") if (ways := listed(part.get(key))))


class Schemas:
    """Reads the schemas in a whole one, `root`, to which their references refer.

    Reading ends for any schema.
    """

    def __init__(self, root: Any):
        self.root = root
        self._depth = 0
        self._types = dict[int, tuple[Any, frozenset[str]]]()  # of schemas, by identity
        self._properties = dict[tuple[int, str], tuple[Any, Any]]()

    def parts(self, schema: Any) -> list[dict[str, Any]]:
        """The schemas that a value must follow all together.

        They are the schema, those it refers to, and those of its `allOf`.
        """
        todo = [schema]
        parts = dict[int, dict[str, Any]]()  # by identity
        while todo and len(parts) < MAX_PARTS:
            part = todo.pop(0)
            if isinstance(part, dict) and id(part) not in parts:
                parts[id(part)] = part
                if "$ref" in part:
                    todo.append(referred(part["$ref"], self.root))
                todo += listed(part.get("allOf"))
        return list(parts.values())

    def types(self, schema: Any) -> frozenset[str]:
        """The types that a value may have by its schema; "integer" comes with "number"."""
        if (known := self._types.get(id(schema))) is not None:
            return known[1]
        if self._depth > MAX_NESTING:
            return ANY
        self._types[id(schema)] = schema, frozenset()  # a circle adds no type
        self._depth += 1
        allowed = ANY
        implied = set[str]()
        for part in self.parts(schema):
            allowed &= _own_types(part)
            for _, ways in ways_of(part):
                allowed &= frozenset[str]().union(*map(self.types, ways)) or ANY
            implied |= {name for name, keys in IMPLIED.items() if any(key in part for key in keys)}
        if allowed == ANY and implied:
            allowed = frozenset(implied | ({"integer"} if "number" in implied else set()))
        self._depth -= 1
        self._types[id(schema)] = schema, allowed or ANY
        return allowed or ANY

    def property(self, schema: Any, name: str) -> Any:
        """The schema of an object's property, by all parts that describe it; {}: nothing does."""
        key = id(schema), name
        if (known := self._properties.get(key)) is not None:
            return known[1]
        if self._depth > MAX_NESTING:
            return {}
        self._properties[key] = schema, {}
        self._depth += 1
        schemas = list[Any]()
        for part in self.parts(schema):
            schemas += _own(part, name)
            for _, ways in ways_of(part):
                if several := [about for way in ways if (about := self.property(way, name)) != {}]:
                    schemas.append({"anyOf": several} if len(several) > 1 else several[0])
        made: Any = {"allOf": schemas} if len(schemas) > 1 else {}
        if len(schemas) == 1:
            made = schemas[0]
        self._depth -= 1
        self._properties[key] = schema, made
        return made

    def names(self, schema: Any) -> list[str]:
        """The properties that any part of an object's schema names, in their order."""
        todo = [schema]
        seen = set[int]()
        names = dict[str, None]()
        while todo:
            for part in self.parts(todo.pop(0)):
                if id(part) not in seen:
                    seen.add(id(part))
                    properties = part.get("properties")
                    names |= dict.fromkeys(properties if isinstance(properties, dict) else ())
                    for _, ways in ways_of(part):
                        todo += ways
        return list(names)

    def required(self, schema: Any) -> list[str]:
        """The properties that an object needs by all parts of its schema."""
        names = dict[str, None]()
        for part in self.parts(schema):
            required = listed(part.get("required"))
            names |= dict.fromkeys(name for name in required if isinstance(name, str))
        return list(names)


def _own_types(part: dict[str, Any]) -> frozenset[str]:
    """The types that one part itself allows."""
    given = part.get("type")
    given = [given] if isinstance(given, str) else listed(given)
    names = {name for name in given if isinstance(name, str)}
    if "number" in names:
        names.add("integer")
    allowed = frozenset(names) or ANY
    for values in (listed(part.get("enum")), [part["const"]] if "const" in part else []):
        allowed &= frozenset(map(type_of, values)) or ANY
    return allowed


def _own(part: dict[str, Any], name: str) -> list[Any]:
    """The schemas that one part itself has for a property.

    Patterns of names are not matched: each may be the one that describes it.
    """
    properties = part.get("properties")
    if isinstance(properties, dict) and name in properties:
        return [properties[name]]
    patterns = part.get("patternProperties")
    others = part.get("additionalProperties")
    ways = list(patterns.values()) if isinstance(patterns, dict) else []
    if isinstance(others, dict):
        ways.append(others)
    return [{"anyOf": ways}] if len(ways) > 1 else ways
