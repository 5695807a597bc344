"""`oneOf` becomes `anyOf` only where no value is valid by two of its parts."""

from __future__ import annotations

from typing import Any

import pytest
from support import grammars
from support.grammars import END, after

from longdraft import InputError
from longdraft.constraints.one_of import as_any_of


def shape(name: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"shape": {"const": name}, **more},
        "required": ["shape"],
    }


A = shape("a", size={"type": "integer"})
B = shape("b")
APART: dict[str, list[Any]] = {
    "constants": [A, B],
    "references": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    "enums": [{**A, "properties": {"shape": {"enum": ["c", "d"]}}}, B],
    "types": [{"$ref": "#/$defs/a"}, {"type": "null"}],
}
TOGETHER: dict[str, list[Any]] = {
    "the same constant": [A, shape("a")],
    "numbers": [{"type": "integer"}, {"type": "number"}],
    "constants that are equal": [shape(1), shape(1.0)],
    "not required": [A, {**B, "required": []}],
    "any type": [A, {k: v for k, v in B.items() if k != "type"}],
    "no object": [A, True],
    "another document": [A, {"$ref": "other.json"}],
    "endless": [A, {"$ref": "#/$defs/endless"}],
    "several": [A, B, shape("b")],
}


def schema(parts: list[Any]) -> dict[str, Any]:
    return {
        "oneOf": parts,
        "$defs": {
            "a": A,
            "b": {"$ref": "#/$defs/c"},
            "c": B,
            "endless": {"$ref": "#/$defs/endless"},
        },
    }


@pytest.mark.parametrize("name", sorted(APART))
def test_parts_that_exclude_each_other(name):
    given = schema(APART[name])
    found = as_any_of({"properties": {"x": given}, "$defs": given["$defs"]})
    assert found["properties"]["x"]["anyOf"] == APART[name] and "oneOf" in given


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_parts_that_may_both_be_valid(name):
    assert as_any_of(schema(TOGETHER[name])) == schema(TOGETHER[name])


def test_a_union_can_be_enforced():
    made = grammars.constraints().json_schema(schema(APART["references"]))
    ids = grammars.tokenizer()('{"shape": "b"}', add_special_tokens=False)["input_ids"]
    assert END in (after(made, ids) or ())
    with pytest.raises(InputError, match="oneOf"):
        grammars.constraints().json_schema(schema([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]))
