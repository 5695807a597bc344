"""Schemas whose objects have the properties that they name, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

# keywords whose values are schemas by name
NAMED = (
    "properties",
    "$defs",
    "definitions",
    "patternProperties",
)
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "contains")
MORE = {"additionalProperties", "patternProperties"}  # allow or forbid other properties
# two of them describe one object together, in parts
ALONE = {
    "properties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
}
OTHERS = {"not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that forbids properties which are not named, where it says nothing of them.

    JSON Schema allows any. All that the result allows is valid by the schema that was given. A
    schema that describes an object in several parts stays unchanged, because a part that is closed
    would forbid the properties of the others.
    """
    made = deepcopy(schema)
    parts = list(nodes(made))
    if any(_in_parts(node) for node in parts):
        return schema
    for node in parts:
        if "properties" in node and not MORE & node.keys():
            node["additionalProperties"] = False
    return made


def _in_parts(node: dict[str, Any]) -> bool:
    together = node.get("allOf")
    several = isinstance(together, list) and len(together) > 1
    return several or len(ALONE & node.keys()) > 1 or bool(OTHERS & node.keys())


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    inner = [schema.get(key) for key in SINGLE]
    for key in LISTED:
        if isinstance(schemas := schema.get(key), list):
            inner += schemas
    for key in NAMED:
        if isinstance(named := schema.get(key), dict):
            inner += named.values()
    for each in inner:
        yield from nodes(each)
