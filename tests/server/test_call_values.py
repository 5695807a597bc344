"""Arguments are whole JSON whatever a model writes, and types are found wherever a schema has
them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longdraft.constraints import ANY, Schemas
from longdraft.server.calls.tags import as_json
from longdraft.server.calls.value import Value

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters=MARKS), max_size=6)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PIECES = [
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "a",
    "1",
    "u",
    "00",
    "true",
    "True",
    "-",
    "é",
    "\x01",
]


def read(text: str, cuts: list[int]) -> tuple[str, int]:
    """An object in a text that comes in these pieces, and how many characters of the text it
    has.
    """
    value = Value()
    said = ""
    used = 0
    low = 0
    for high in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        more, taken = value.feed(text[low:high]) if not value.done else ("", 0)
        said = said + more
        used = used + taken
        low = high
    return said + value.close(), used


@pytest.mark.full
@settings(deadline=None)
@given(
    st.dictionaries(TEXT, JSON, max_size=4),
    st.sampled_from([None, 1, 4]),
    st.booleans(),
    st.lists(st.integers(0, 99)),
)
def test_valid_json_is_unchanged(value, indent, escaped, cuts):
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert read(text + ' }"tail', cuts) == (text, len(text))


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*PIECES, "NaN", "1e999"]), max_size=25),
    st.lists(st.integers(0, 40), max_size=5),
)
def test_any_text_gives_one_json_object_however_it_comes(pieces, cuts):
    text = "{" + "".join(pieces)
    whole = read(text, [])
    assert isinstance(json.loads(whole[0], parse_constant=lambda name: 1 / 0), dict)
    assert read(text, cuts) == whole == read(text, list(range(len(text))))


MENDED: dict[str, Any] = {
    '{"a": "say "hi" now"}': {"a": 'say "hi" now'},
    "{'a': 'it\\'s', 'c': True,}": {"a": "it's", "c": True},
    '{"a": New York, "b": http://x/y}': {"a": "New York", "b": "http://x/y"},
    '{"a": [1, 2}': {"a": [1, 2]},
    '{"p": "a\\d\n"}': {"p": "a\\d\n"},
    '{"a": "x"\n "b": 1}': {"a": "x", "b": 1},
    '{"a": "b': {"a": "b"},
    '{"a": None': {"a": None},
}


@pytest.mark.parametrize("text", MENDED)
def test_common_faults_are_mended(text):
    assert json.loads(read(text, [])[0]) == MENDED[text]


def test_a_mark_ends_an_object():
    assert read('{"a": "b\ufdd3}', []) == ('{"a": "b"}', 8)


DEFS: dict[str, Any] = {
    "$defs": {"s": {"type": "string"}, "n": {"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]}}
}
DEFS["$defs"]["c"] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/c"}]}
TYPES: list[tuple[Any, set[str]]] = [
    ({"$ref": "#/$defs/s"}, {"string"}),
    ({"$ref": "#/$defs/n"}, {"string", "null"}),
    ({"allOf": [{"type": ["string", "integer"]}, {"$ref": "#/$defs/s"}]}, {"string"}),
    ({"const": "7"}, {"string"}),
    ({"enum": ["a", 1]}, {"string", "integer"}),
    ({"pattern": "^7$"}, {"string"}),
    ({"minimum": 7}, {"number", "integer"}),
    ({"oneOf": [{"const": "a"}, {"const": "b"}]}, {"string"}),
    ({"type": "number"}, {"number", "integer"}),
    ({"$ref": "#/$defs/gone"}, set(ANY)),
    ({"$ref": "https://else.where"}, set(ANY)),
    ({"$ref": "#/$defs/c"}, {"null"}),  # a circle
    ({}, set(ANY)),
    (True, set(ANY)),
]


@pytest.mark.parametrize(
    ("schema", "types"), TYPES, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_types_are_found_behind_every_keyword(schema, types):
    root = DEFS | {"properties": {"x": schema}}
    for whole in (
        root,
        {"allOf": [root]} | DEFS,
        {"$ref": "#/$defs/x", "$defs": DEFS["$defs"] | {"x": root}},
    ):
        schemas = Schemas(
            whole if "$ref" not in whole else whole | {"properties": root["properties"]}
        )
        assert schemas.types(schemas.property(schemas.root, "x")) == types
        assert schemas.names(schemas.root) == ["x"]


def test_properties_of_patterns_and_others_have_their_types():
    schemas = Schemas(
        {"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": {"type": "null"}}
    )
    assert schemas.types(schemas.property(schemas.root, "abc")) == {"string", "null"}


def test_reading_ends_for_any_schema():
    """References that divide and come back, and long chains of them, take no time and no stack."""
    parts = {
        f"a{i}": {key: [{"$ref": f"#/$defs/a{i + 1}"}] * 2}
        for i in range(3000)
        for key in ("anyOf",)
    }
    schemas = Schemas({"$defs": parts | {"b": {"allOf": [{"$ref": "#/$defs/b"}]}}})
    for name in ("a0", "b"):
        assert schemas.types({"$ref": f"#/$defs/{name}"}) == ANY
        assert (
            schemas.property({"$ref": f"#/$defs/{name}"}, "x") == {}
            and schemas.required(parts["a0"]) == []
        )
        assert schemas.names({"$ref": f"#/$defs/{name}"}) == []


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("7", {"integer"}, 7),
        ("7", {"string", "null"}, "7"),
        ("None", {"string", "null"}, None),
        ("null", {"null"}, None),
        ("True", {"boolean"}, True),
        ("['a', 1, True]", {"array"}, ["a", 1, True]),
        ("{'a': None}", {"object"}, {"a": None}),
        ("NaN", {"number"}, "NaN"),
        ("x", {"integer"}, "x"),
        ('"x"', {"string", "null"}, "x"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_value_has_one_of_its_types_where_its_text_allows_it(text, types, value):
    assert json.loads(as_json(text, types)) == value
