"""What a schema says of a value in any of its parts: behind references, in `allOf`, in `anyOf`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
MOST = 256  # parts that describe one value together
DEEPEST = 32  # alternatives in alternatives, which references can make endless
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
    """What a `$ref` refers to in the whole schema; None for anything outside."""
    if not isinstance(place, str) or not (place == "#" or place.startswith("#/")):
        return None
    found = root
    for step in place[2:].split("/") if place != "#" else ():
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def ways_of(part: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of schemas of which a value must follow one, and their keywords."""
    yield from ((key, ways) for key in ("anyOf", "oneOf") if (ways := listed(part.get(key))))


class Schemas:
    """Reads the schemas in a whole one, `root`, to which their references refer. Reading ends for
    any schema.
    """

    def __init__(self, root: Any):
        self.root = root
        self._depth = 0
        self._types = dict[int, tuple[Any, frozenset[str]]]()  # of schemas, by identity
        self._properties = dict[tuple[int, str], tuple[Any, Any]]()

    def parts(self, schema: Any) -> list[dict[str, Any]]:
        """Schemas that a value must follow all together: the schema, those it refers to, and those
        of its `allOf`.
        """
        todo = [schema]
        found = dict[int, dict[str, Any]]()
        while todo and len(found) < MOST:
            one = todo.pop(0)
            if isinstance(one, dict) and id(one) not in found:
                found[id(one)] = one
                todo += [referred(one["$ref"], self.root)] if "$ref" in one else []
                todo += listed(one.get("allOf"))
        return list(found.values())

    def types(self, schema: Any) -> frozenset[str]:
        """The types that a value may have, as far as its schema says; "number" is with
        "integer".
        """
        if (known := self._types.get(id(schema))) is not None:
            return known[1]
        if self._depth > DEEPEST:
            return ANY
        self._types[id(schema)] = schema, frozenset()  # a circle adds no type
        self._depth += 1
        found = ANY
        implied = set[str]()
        for part in self.parts(schema):
            found &= _own_types(part)
            for _, ways in ways_of(part):
                found &= frozenset[str]().union(*map(self.types, ways)) or ANY
            implied |= {name for name, keys in IMPLIED.items() if any(key in part for key in keys)}
        if found == ANY and implied:
            found = frozenset(implied | ({"integer"} if "number" in implied else set()))
        self._depth -= 1
        self._types[id(schema)] = schema, found or ANY
        return found or ANY

    def property(self, schema: Any, name: str) -> Any:
        """The schema of an object's property, by all parts that describe it; {} where nothing
        does.
        """
        key = id(schema), name
        if (known := self._properties.get(key)) is not None:
            return known[1]
        if self._depth > DEEPEST:
            return {}
        self._properties[key] = schema, {}
        self._depth += 1
        found = list[Any]()
        for part in self.parts(schema):
            found += _own(part, name)
            for _, ways in ways_of(part):
                if several := [about for way in ways if (about := self.property(way, name)) != {}]:
                    found.append({"anyOf": several} if len(several) > 1 else several[0])
        made = {} if not found else found[0] if len(found) == 1 else {"allOf": found}
        self._depth -= 1
        self._properties[key] = schema, made
        return made

    def names(self, schema: Any) -> list[str]:
        """The properties that any part of an object's schema names, in their order."""
        todo = [schema]
        seen = set[int]()
        found = dict[str, None]()
        while todo:
            for part in self.parts(todo.pop(0)):
                if id(part) not in seen:
                    seen.add(id(part))
                    properties = part.get("properties")
                    found |= dict.fromkeys(properties if isinstance(properties, dict) else ())
                    todo += [way for _, ways in ways_of(part) for way in ways]
        return list(found)

    def required(self, schema: Any) -> list[str]:
        """The properties that an object needs by all parts of its schema."""
        named = (name for part in self.parts(schema) for name in listed(part.get("required")))
        return list(dict.fromkeys(name for name in named if isinstance(name, str)))


def _own_types(part: dict[str, Any]) -> frozenset[str]:
    """Those that one part itself allows."""
    given = part.get("type")
    names = {
        x for x in ([given] if isinstance(given, str) else listed(given)) if isinstance(x, str)
    }
    found = frozenset(names | ({"integer"} if "number" in names else set())) or ANY
    for values in (listed(part.get("enum")), [part["const"]] if "const" in part else []):
        found &= frozenset(map(type_of, values)) or ANY
    return found


def _own(part: dict[str, Any], name: str) -> list[Any]:
    """What one part itself says of a property. Patterns of names are not matched: each may be the
    one that says it.
    """
    properties, patterns, more = (
        part.get(key) for key in ("properties", "patternProperties", "additionalProperties")
    )
    if isinstance(properties, dict) and name in properties:
        return [properties[name]]
    ways = [
        *(patterns.values() if isinstance(patterns, dict) else ()),
        *([more] if isinstance(more, dict) else []),
    ]
    return [{"anyOf": ways}] if len(ways) > 1 else ways
