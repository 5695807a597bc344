"""Schemas with keywords that cannot be enforced, and the keywords that may be left out of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from longdraft.constraints.closed import nodes

Check = Callable[[Any], str]  # what is wrong with a schema; empty: it can be enforced
MAX_ANY_OF = 100  # parts of anyOf that are tried
# JSON Schema defines these: any other format says nothing of a value's form.
FORMATS = {
    *(
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
    ),
    *("uuid", "uri", "uri-reference", "iri", "iri-reference", "uri-template", "regex"),
    *("json-pointer", "relative-json-pointer"),
}
FINE = {"type": "string"}  # a schema that can be enforced


def enforceable(schema: Any, wrong: Check) -> Any:
    """A schema that allows nothing which the given one forbids, and can be enforced if possible.

    It has no keywords that say nothing, and no parts of `anyOf` that cannot be enforced, if others
    can that are more than null.
    """
    made = _without_empty(schema)
    if not any("anyOf" in node for node in nodes(made)) or not wrong(made):
        return made
    copy = deepcopy(made)
    unions = [node for node in nodes(copy) if isinstance(node.get("anyOf"), list)]
    if sum(len(node["anyOf"]) for node in unions) > MAX_ANY_OF:
        return made
    for node in reversed(unions):  # the inner ones first
        kept = [part for part in node["anyOf"] if not wrong(_alone(part, copy))]
        if any(part != {"type": "null"} for part in kept):
            node["anyOf"] = kept
    return copy


def relaxed(schema: Any, wrong: Check) -> tuple[Any, list[str]]:
    """A schema without its keywords that cannot be enforced, and their names.

    Only keywords are left out that leave JSON of the same shape: uniqueItems, patterns with
    look-around and formats. The schema itself if it can be enforced.
    """
    narrowed = enforceable(schema, wrong)
    if not wrong(narrowed):
        return schema, []
    made = deepcopy(narrowed)
    lost = set[str]()
    for node in nodes(made):
        for key in ("uniqueItems", "pattern", "format"):
            if key in node and _says_something(node, key) and wrong(_only(node, key)):
                del node[key]
                lost.add(key)
    return made, sorted(lost)


def _without_empty(schema: Any) -> Any:
    keys = ("uniqueItems", "format")
    if all(_says_something(node, key) for key in keys for node in nodes(schema)):
        return schema
    made = deepcopy(schema)
    for node in nodes(made):
        for key in keys:
            if not _says_something(node, key):
                node.pop(key, None)
    return made


def _says_something(node: dict[str, Any], key: str) -> bool:
    if key not in node:
        return True
    value = node[key]
    most = node.get("maxItems")
    if key == "uniqueItems":
        return value is not False and not (isinstance(most, int) and most <= 1)
    return key != "format" or not isinstance(value, str) or value in FORMATS


def _only(node: dict[str, Any], key: str) -> dict[str, Any]:
    """A schema that has nothing but this keyword."""
    return {"type": "array" if key == "uniqueItems" else "string", key: node[key]}


def _alone(part: Any, root: dict[str, Any]) -> Any:
    """A part of a schema as a separate schema.

    One that refers to other places than definitions is not judged.
    """
    if not isinstance(part, dict):
        return part
    places = [str(node["$ref"]) for node in nodes(part) if "$ref" in node]
    if not all(place.startswith(("#/$defs/", "#/definitions/")) for place in places):
        return FINE
    return part | {key: root[key] for key in ("$defs", "definitions") if key in root}
