"""200 JSON schemas like those of applications, with questions, for structured output.

They are generated from families with a fixed seed, so they are the same everywhere. About one in
seven has a keyword that no token mask can enforce.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Random = random.Random

FIELDS: dict[str, Schema] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 40},
    "title": {"type": "string"},
    "description": {"type": "string", "maxLength": 120},
    "email": {"type": "string", "format": "email"},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "quantity": {"type": "integer", "minimum": 1, "maximum": 500},
    "price": {"type": "number", "minimum": 0, "maximum": 100000},
    "discount": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    "active": {"type": "boolean"},
    "status": {"enum": ["open", "in progress", "closed"]},
    "priority": {"type": "string", "enum": ["low", "medium", "high", "urgent"]},
    "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
    "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    "phone": {"type": "string", "pattern": r"^\+[0-9]{1,3} [0-9]{6,12}$"},
    "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
    "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    "currency": {"enum": ["EUR", "USD", "GBP", "JPY"]},
    "city": {"type": "string", "maxLength": 30},
    "date": {"type": "string", "format": "date"},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 5},
    "count": {"type": "integer"},
    "score": {"type": "number"},
}
THINGS = (
    "customer", "order", "invoice", "book", "recipe", "flight", "hotel booking", "support ticket",
    "software release",
    "employee", "sensor reading", "movie", "court case", "patient visit", "warehouse item",
    "football match", "museum",
    "bank transfer", "job offer", "weather report", "train journey", "restaurant",
    "research paper", "podcast episode",
)  # fmt: skip
WORDS = (
    "amount", "author", "batch", "branch", "buyer", "category", "channel", "code", "comment",
    "company", "contact",
    "depth", "device", "driver", "duration", "engine", "event", "file", "floor", "gate", "group",
    "height", "host",
    "index", "label", "language", "level", "line", "location", "mode", "model", "month", "number",
    "origin", "owner",
    "page", "path", "phase", "place", "port", "product", "queue", "rank", "reason", "region",
    "room", "route", "seat",
    "section", "seller", "series", "shift", "signal", "size", "source", "stage", "state", "step",
    "street", "target",
    "team", "topic", "unit", "value", "vendor", "version", "volume", "week", "weight", "year",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A schema and a question that asks for such a JSON. enforceable: no keyword of it is beyond
    token masks.
    """

    name: str
    family: str
    schema: Schema
    question: str
    enforceable: bool = True


def record(properties: Schema, required: list[str] | None = None, more: Any = False) -> Schema:
    """An object with these properties, all of them required unless said otherwise."""
    found: Schema = {"type": "object", "properties": properties}
    found["required"] = list(properties) if required is None else required
    return found if more is None else found | {"additionalProperties": more}


def fields(r: Random, count: int) -> Schema:
    return {name: FIELDS[name] for name in r.sample(sorted(FIELDS), count)}


def flat(r: Random) -> Schema:
    return record(fields(r, r.randint(2, 8)))


def nested(r: Random) -> Schema:
    inner = record(fields(r, r.randint(2, 4)))
    return record(
        fields(r, 2)
        | {"address": inner, "contact": record(fields(r, 2) | {"backup": record(fields(r, 2))})}
    )


def records(r: Random) -> Schema:
    low = r.randint(0, 2)
    items = {
        "type": "array",
        "items": record(fields(r, r.randint(2, 4))),
        "minItems": low,
        "maxItems": low + 2,
    }
    return items if r.random() < 0.3 else record(fields(r, 1) | {"items": items})


def enums(r: Random) -> Schema:
    mixed = {"enum": [1, 2.5, "three", None, True]}
    words = {"type": "string", "enum": r.sample(WORDS, r.randint(2, 20))}
    kind = {"const": r.choice(THINGS)}
    several = {"type": "array", "items": words, "minItems": 1, "maxItems": 3}
    return record({"kind": kind, "choice": words, "several": several, "mixed": mixed})


def numbers(r: Random) -> Schema:
    low, high = sorted(r.sample(range(-5000, 5000), 2))
    step = r.choice([2, 5, 10, 25])
    return record(
        {
            "whole": {"type": "integer", "minimum": low, "maximum": high},
            "step": {"type": "integer", "minimum": 0, "maximum": 40 * step, "multipleOf": step},
            "half": {
                "type": "number",
                "minimum": 0,
                "maximum": 10,
                "multipleOf": r.choice([0.5, 0.25]),
            },
            "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "above": {"type": "number", "minimum": r.choice([0, -1.5, 273.15])},
        }
    )


PATTERNS = (
    "^[a-z][a-z0-9_]{2,15}$", "^v[0-9]+\\.[0-9]+\\.[0-9]+$", "^(EUR|USD) [0-9]{1,4}\\.[0-9]{2}$",
    "^[0-9a-f]{8,16}$",
    "^(Mo|Tu|We|Th|Fr|Sa|Su)(,(Mo|Tu|We|Th|Fr|Sa|Su)){0,6}$", "[0-9]+",
    "^[^@ ]{1,20}@example\\.(org|com)$",
)  # fmt: skip
FORMATS = ("email", "ipv4", "hostname", "uri", "date", "time", "date-time", "uuid")


def strings(r: Random) -> Schema:
    low = r.randint(0, 6)
    return record(
        {
            "code": {"type": "string", "pattern": r.choice(PATTERNS)},
            "format": {"type": "string", "format": r.choice(FORMATS)},
            "short": {"type": "string", "minLength": low, "maxLength": low + r.randint(0, 20)},
            "long": {"type": "string", "minLength": 20, "maxLength": 200},
        }
    )


def optional(r: Random) -> Schema:
    properties = fields(r, r.randint(4, 8))
    return record(properties, r.sample(sorted(properties), r.randint(0, 2)))


def additional(r: Random) -> Schema:
    """Objects with other properties than those named, of any kind or of one."""
    more = r.choice(
        [None, True, {"type": "integer"}, {"type": "string", "maxLength": 12}, record(fields(r, 2))]
    )
    return record(fields(r, r.randint(0, 3)), more=more)


def union(r: Random) -> Schema:
    """As pydantic v2 writes a discriminated union."""
    names = r.sample(WORDS, 3)
    parts = {
        name.title(): record(
            {"type": {"const": name, "title": "Type", "type": "string"}}
            | fields(r, r.randint(1, 3))
        )
        for name in names
    }
    refs = [{"$ref": f"#/$defs/{name}"} for name in parts]
    mapping = {name: f"#/$defs/{name.title()}" for name in names}
    either: Schema = {"oneOf": refs, "discriminator": {"mapping": mapping, "propertyName": "type"}}
    if r.random() < 0.4:
        either = {"anyOf": refs}
    items = {"type": "array", "items": either, "minItems": 1, "maxItems": 3}
    return record({"action": either} if r.random() < 0.5 else {"actions": items}) | {"$defs": parts}


def references(r: Random) -> Schema:
    parts = {
        "Money": record({"amount": FIELDS["price"], "currency": FIELDS["currency"]}),
        "Part": flat(r),
    }
    properties: Schema = {
        "total": {"$ref": "#/$defs/Money"},
        "main": {"$ref": "#/$defs/Part", "description": "The main part."},
    }
    properties["history"] = {"type": "array", "items": {"$ref": "#/$defs/Money"}, "maxItems": 3}
    return record(properties) | {"$defs": parts}


def recursive(r: Random) -> Schema:
    kind = r.choice(["tree", "list", "expression", "whole"])
    if kind == "whole":
        replies = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
        return record(fields(r, 1) | {"replies": replies})
    if kind == "list":
        node = record(
            {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            }
        )
        return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    if kind == "tree":
        children = {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 3}
        return record({"root": {"$ref": "#/$defs/Node"}}) | {
            "$defs": {"Node": record(fields(r, 2) | {"children": children})}
        }
    sides = {side: {"$ref": "#/$defs/Term"} for side in ("left", "right")}
    sum_ = record({"op": {"enum": ["+", "-", "*"]}, **sides})
    return {"$ref": "#/$defs/Term", "$defs": {"Term": {"anyOf": [{"type": "integer"}, sum_]}}}


def all_of(r: Random) -> Schema:
    first, second = (fields(r, r.randint(1, 3)) for _ in range(2))
    second = {name: field for name, field in second.items() if name not in first}
    whole = [record(part, more=None) for part in (first, second)]
    if r.random() < 0.5:
        return {"allOf": [{"$ref": "#/$defs/Base"}, whole[1]], "$defs": {"Base": whole[0]}}
    bounds = {
        "allOf": [{"type": "integer", "minimum": r.randint(0, 9)}, {"maximum": r.randint(10, 99)}]
    }
    return record(first | {"bounded": bounds})


def nullable(r: Random) -> Schema:
    """In both ways that are in use."""
    found = {}
    for name, field in fields(r, r.randint(3, 6)).items():
        either = {"anyOf": [field, {"type": "null"}], "default": None}
        found[name] = (
            field | {"type": [field["type"], "null"]}
            if "type" in field and "enum" not in field
            else either
        )
    found["nickname"] = {
        "anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}],
        "title": "Nickname",
    }
    return record(found)


def dates(r: Random) -> Schema:
    names = ("id", "day", "time", "at", "until")
    formats = ("uuid", "date", "time", "date-time", "date-time")
    found = {
        name: {"type": "string", "format": format}
        for name, format in zip(names, formats, strict=True)
    }
    return record({name: found[name] for name in r.sample(names, r.randint(2, 5))} | fields(r, 1))


def patterned(r: Random) -> Schema:
    """Maps whose keys have a form."""
    value = r.choice(
        [{"type": "integer"}, {"type": "string", "maxLength": 20}, record(fields(r, 2))]
    )
    pattern = r.choice(["^[a-z]{2,8}$", "^[0-9]{4}$", "^x-[a-z]+$", "^item_[0-9]{1,3}$"])
    # whose name has none of the forms
    properties = {"About": FIELDS["title"]} if r.random() < 0.5 else {}
    return record(properties) | {"patternProperties": {pattern: value}}


def tuples(r: Random) -> Schema:
    point = {
        "type": "array",
        "prefixItems": [{"type": "number"}, {"type": "number"}],
        "items": False,
        "minItems": 2,
    }
    mixed = [{"type": "string", "maxLength": 20}, {"type": "integer"}, {"type": "boolean"}]
    rest: Any = r.choice([False, {"type": "integer"}, {"enum": ["x", "y"]}])
    row = {
        "type": "array",
        "prefixItems": mixed,
        "items": rest,
        "minItems": r.randint(1, 3),
        "maxItems": r.choice([3, 5]),
    }
    return record({"at": point, "row": row} | fields(r, r.randint(0, 2)))


def deep(r: Random) -> Schema:
    found: Schema = record(fields(r, 1))
    for word in r.sample(WORDS, r.randint(8, 16)):
        found = (
            record({word: found})
            if r.random() < 0.8
            else {"type": "array", "items": found, "minItems": 1, "maxItems": 1}
        )
    return found


def wide(r: Random) -> Schema:
    kinds = ("boolean", "integer", "number")
    properties = {name: {"type": r.choice(kinds)} for name in r.sample(WORDS, 60)}
    return record(properties, None if r.random() < 0.5 else r.sample(sorted(properties), 10))


def tools(r: Random) -> Schema:
    """Arguments of a tool: a few are needed, most have a description and a default."""
    properties = {
        name: field | {"description": f"The {name} to use.", "title": name.title()}
        for name, field in fields(r, r.randint(2, 5)).items()
    }
    properties["limit"] = {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    arguments = record(properties, r.sample(sorted(properties), 2))
    if r.random() < 0.5:
        return arguments | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return record(
        {
            "name": {"const": f"{r.choice(('get', 'find', 'set'))}_{r.choice(WORDS)}"},
            "arguments": arguments,
        }
    )


BEYOND: tuple[Callable[[Schema, Random], Schema], ...] = (
    lambda s, _: s | {"not": {"required": ["secret"]}},
    lambda s, _: s | {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    lambda s, _: record(
        s["properties"]
        | {"set": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}
    ),
    lambda s, _: record(s["properties"] | {"list": {"type": "array", "contains": {"const": 7}}}),
    lambda s, _: s | {"propertyNames": {"maxLength": 9}},
    lambda s, r: s | {"dependentRequired": {r.choice(sorted(s["properties"])): ["more"]}},
    lambda s, r: record(
        s["properties"] | {"other": {"$ref": f"https://example.org/{r.choice(WORDS)}.json"}}
    ),
)


COUNTS: dict[Callable[[Random], Schema], int] = {
    flat: 12, nested: 10, records: 12, enums: 8, numbers: 10, strings: 14, optional: 10,
    additional: 8, union: 12,
    references: 8, recursive: 10, all_of: 8, nullable: 8, dates: 8, patterned: 8, tuples: 8,
    deep: 5, wide: 4, tools: 9,
}  # fmt: skip


def cases(seed: int = 0) -> list[Case]:
    """All 200. Those of `beyond` take its kinds in turn."""
    r = Random(seed)
    found = list[Case]()
    for family, count in COUNTS.items():
        for i in range(count):
            found.append(_case(family.__name__, i, family(r), r))
    for i in range(200 - len(found)):
        found.append(_case("beyond", i, BEYOND[i % len(BEYOND)](flat(r), r), r, enforceable=False))
    return found


def _case(family: str, i: int, schema: Schema, r: Random, enforceable: bool = True) -> Case:
    thing = r.choice(THINGS)
    kind = "a list" if schema.get("type") == "array" else "an object"
    names = ", ".join(_names(schema)[:12])
    about = f" with {names}" if names else ""
    question = f"Write {kind} in JSON about a made-up {thing}{about}. Answer with the JSON alone."
    return Case(f"{family} {i}", family, schema, question, enforceable)


def _names(schema: Any) -> list[str]:
    """The names of properties, outer ones first."""
    parts = (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    )
    own = schema.get("properties", {}) if isinstance(schema, dict) else ()
    return list(dict.fromkeys([*own, *(name for part in parts for name in _names(part))]))
