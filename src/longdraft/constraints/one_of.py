"""`oneOf` of schemas that exclude each other, replaced by `anyOf`, which can be enforced.

Both allow the same values then.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import combinations
from typing import Any

from longdraft.constraints.closed import nodes
from longdraft.constraints.types import referred

MAX_ONE_OF = 100  # schemas of a oneOf that are compared with each other
MAX_REFERENCES = 8  # references that lead to further ones


def as_any_of(schema: Any) -> Any:
    """The schema with `anyOf` for each `oneOf` of which no value can be valid by two parts.

    This is certain for parts of different types, and for objects that need one property with
    different texts, as pydantic's discriminated unions have it.
    """
    if not isinstance(schema, dict) or all("oneOf" not in node for node in nodes(schema)):
        return schema
    made = deepcopy(schema)
    for node in nodes(made):
        parts = node.get("oneOf")
        if "anyOf" in node or not isinstance(parts, list) or not 0 < len(parts) <= MAX_ONE_OF:
            continue
        if all(_exclude(a, b, made) for a, b in combinations([_read(p, made) for p in parts], 2)):
            node["anyOf"] = node.pop("oneOf")
    return made


def _read(part: Any, root: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it refers to; {} for one that cannot be read."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(part, dict) or "$ref" not in part:
            break
        part = referred(part["$ref"], root)
    return part if isinstance(part, dict) and "$ref" not in part else {}


def _exclude(first: dict[str, Any], second: dict[str, Any], root: dict[str, Any]) -> bool:
    types = _types(first)
    other_types = _types(second)
    if types and other_types and not types & other_types:
        return True
    if types != {"object"} or other_types != {"object"}:
        return False
    texts = _texts(first, root)
    others = _texts(second, root)
    return any(not texts[name] & others[name] for name in texts.keys() & others.keys())


def _types(schema: dict[str, Any]) -> set[str]:
    given = schema.get("type", [])
    names = given if isinstance(given, list) else [given]
    return {str(name).replace("integer", "number") for name in names}


def _texts(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, set[str]]:
    """The texts that a required property may be, by its name."""
    texts = dict[str, set[str]]()
    properties = schema.get("properties")
    required = schema.get("required")
    for name, value in properties.items() if isinstance(properties, dict) else ():
        read = _read(value, root)
        values = [read["const"]] if "const" in read else read.get("enum")
        needed = isinstance(required, list) and name in required
        if needed and isinstance(values, list) and all(isinstance(v, str) for v in values):
            texts[name] = set(values)
    return texts
