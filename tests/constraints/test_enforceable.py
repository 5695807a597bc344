"""Parts of a union that cannot be enforced are left out where others can, and nothing else becomes
possible by it.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import grammars
from support.grammars import END, after

from longdraft import InputError
from longdraft.constraints import enforceable as module
from longdraft.constraints import json_rule, relaxed_schema

DECIMAL = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}  # as pydantic writes it
NUMBER = {"type": "number"}
NULL = {"type": "null"}
TEXT = {"type": "string", "maxLength": 3}
SET = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def obj(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def allows(schema: Any, text: str) -> bool:
    """Whether a text is complete and may end, by the schema as it is enforced."""
    ids = grammars.tokenizer()(text, add_special_tokens=False)["input_ids"]
    return END in (after(grammars.constraints().json_schema(schema), ids) or ())


# a schema, what it allows, what it does not
UNIONS: dict[str, tuple[Any, list[str], list[str]]] = {
    "a decimal": ({"anyOf": [NUMBER, DECIMAL]}, ["1", "1.5"], ['"1"', '"x"']),
    "one that may be null": (
        obj(a={"anyOf": [DECIMAL, NUMBER, NULL]}),
        ['{"a": null}', '{"a": 2}'],
        ['{"a": "2"}'],
    ),
    "a set or a text": ({"anyOf": [SET, TEXT]}, ['"a"'], ["[1]", "[]"]),
    "a union in a union": (
        {"anyOf": [{"anyOf": [DECIMAL, TEXT]}, {"anyOf": [SET, NUMBER]}]},
        ['"abc"', "1"],
        ["[1]", '"abcd"'],
    ),
    "references": (
        {
            "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {"a": SET, "b": obj(x={"enum": [1]})},
        },
        ['{"x": 1}'],
        ["[1]"],
    ),
    "a reference into the document": (
        obj(a=TEXT, b={"anyOf": [SET, {"$ref": "#/properties/a"}]}),
        ['{"a": "x", "b": "y"}'],
        ['{"a": "x", "b": [1]}', '{"a": "x", "b": 1}'],
    ),
    "in a list": (
        {"type": "array", "items": {"anyOf": [SET, NULL, {"enum": [1]}]}},
        ["[1, null]"],
        ["[[1]]"],
    ),
    "a format that nothing defines": (
        obj(p={"type": "string", "format": "path"}),
        ['{"p": "/x"}'],
        ['{"p": 1}'],
    ),
    "a network": ({"type": "string", "format": "ipv4network"}, ['"x"'], ["1"]),
    "one that need not be unique": (
        {"type": "array", "uniqueItems": False, "items": {"enum": [1]}},
        ["[1, 1]"],
        ["[2]"],
    ),
    "one that has one item": ({**SET, "maxItems": 1}, ["[1]", "[]"], ["[1, 2]"]),
    "properties with such names": (
        obj(format={"enum": ["a"]}, uniqueItems=NULL),
        ['{"format": "a", "uniqueItems": null}'],
        ["{}"],
    ),
}


@pytest.mark.parametrize("name", sorted(UNIONS))
def test_a_part_that_can_be_enforced_is(name):
    schema, allowed, others = UNIONS[name]
    given = repr(schema)
    assert [allows(schema, text) for text in allowed + others] == [True] * len(allowed) + [
        False
    ] * len(others)
    assert repr(schema) == given


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [SET, DECIMAL]},
        {"anyOf": [SET, NULL]},  # null alone is not what was meant
        {"anyOf": [NUMBER, NULL], "not": {}},
        obj(a={"anyOf": [NUMBER, DECIMAL]}, b=SET),
        {"type": "string", "format": "json-pointer"},
        {"anyOf": [*[{"const": i} for i in range(module.MAX_ANY_OF)], SET]},
    ],
)
def test_what_has_no_such_part_is_refused(schema):
    with pytest.raises(InputError, match="the JSON schema cannot be used: "):
        grammars.constraints().json_schema(schema)


def test_as_a_part_of_a_grammar_too():
    made = grammars.constraints().lark(f"start: {json_rule(obj(a={'anyOf': [NUMBER, DECIMAL]}))}")
    ids = grammars.tokenizer()('{"a": 1}', add_special_tokens=False)["input_ids"]
    assert END in (after(made, ids) or ())


@pytest.mark.parametrize(
    ("schema", "lost", "allowed"),
    [
        (SET, ["uniqueItems"], ["[1, 1]"]),
        (obj(a=SET, b={"anyOf": [NUMBER, DECIMAL]}), ["uniqueItems"], ['{"a": [1, 1], "b": 2}']),
        ({"anyOf": [SET, NULL]}, ["uniqueItems"], ["null", "[1, 1]"]),
        (DECIMAL, ["pattern"], ['"x"']),
        ({"type": "string", "format": "json-pointer"}, ["format"], ['"x"']),
        ({**DECIMAL, "format": "date"}, ["pattern"], ['"2020-01-02"']),
        (
            obj(a={"type": "string", "pattern": "^a$"}, b=SET),
            ["uniqueItems"],
            ['{"a": "a", "b": []}'],
        ),
        ({"anyOf": [NUMBER, DECIMAL]}, [], ["1"]),
        ({"type": "integer"}, [], ["1"]),
    ],
)
def test_what_is_left_out_is_named_and_no_more_than_that(schema, lost, allowed):
    found, names = relaxed_schema(schema)
    assert names == lost and all(allows(found, text) for text in allowed)
    assert not any(
        allows(found, text) for text in ("{}", '{"a": "b", "b": []}', '{"a": [], "b": "2"}', "true")
    )


def test_what_would_change_the_shape_is_not_left_out():
    assert relaxed_schema({"not": {}}) == ({"not": {}}, [])
    with pytest.raises(InputError, match="Unimplemented"):
        grammars.constraints().json_schema(relaxed_schema(obj(a=SET, b={"not": {}}))[0])


def test_parts_that_stay_are_caught(monkeypatch):
    monkeypatch.setattr(
        "longdraft.constraints.constraints.enforceable", lambda schema, wrong: schema
    )
    grammars.constraints().forget()
    from longdraft.constraints.constraints import _enforceable

    _enforceable.cache_clear()
    for name in ("a decimal", "a set or a text", "a format that nothing defines"):
        with pytest.raises(InputError):
            allows(UNIONS[name][0], "1")
    _enforceable.cache_clear()
