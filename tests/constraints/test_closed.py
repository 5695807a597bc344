"""Closed schemas: what they allow is valid by the schema that was given, and has no property that
it does not name.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import grammars
from support.grammars import END, after

from longdraft.constraints import closed

INNER = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
PLACES: dict[str, dict[str, Any]] = {  # of an object in a schema, by the text around it
    '{"a": [%s]}': {"properties": {"a": {"type": "array", "items": INNER}}},
    '{"a": {"x": %s}}': {"properties": {"a": {"type": "object", "additionalProperties": INNER}}},
    '{"a": %s}': {"properties": {"a": {"$ref": "#/$defs/inner"}}, "$defs": {"inner": INNER}},
    '{"properties": %s}': {"properties": {"properties": {"anyOf": [INNER, {"type": "null"}]}}},
    "%s": {"allOf": [INNER]},
}
OPEN: dict[str, dict[str, Any]] = {
    "says so": INNER | {"additionalProperties": True},
    "names no property": {"type": "object"},
    "patterns": INNER | {"patternProperties": {"^c": {"type": "integer"}}},
    "in parts": {"allOf": [INNER, {"type": "object", "properties": {"c": {"type": "integer"}}}]},
    "a part with a choice": INNER
    | {"anyOf": [{"properties": {"c": {"type": "integer"}}, "required": ["c"]}]},
    "a reference with more": {
        "$ref": "#/$defs/i",
        "properties": {"c": {"type": "integer"}},
        "$defs": {"i": INNER},
    },
}
ONE = '{"b": 1}'
TWO = '{"b": 1, "c": 2}'


def takes(schema: dict[str, Any], text: str) -> bool:
    tokens = grammars.tokenizer()(text, add_special_tokens=False)["input_ids"]
    following = after(grammars.constraints().json_schema(schema), tokens)
    return following is not None and END in following


@pytest.mark.parametrize("around", sorted(PLACES))
def test_objects_have_no_other_properties_wherever_they_are(around):
    schema = {"type": "object"} | PLACES[around]
    assert takes(schema, around % ONE) and takes(schema, around % TWO)
    assert takes(closed(schema), around % ONE) and not takes(closed(schema), around % TWO)


@pytest.mark.parametrize("name", sorted(OPEN))
def test_a_schema_that_is_open_stays_so(name):
    assert closed(OPEN[name]) == OPEN[name] and takes(closed(OPEN[name]), TWO)


def test_values_are_no_schemas():
    value = {"properties": {"b": 1}}
    schema = {"type": "object", "properties": {"a": {"enum": [value], "default": value}}}
    assert closed(schema) == schema | {"additionalProperties": False}
