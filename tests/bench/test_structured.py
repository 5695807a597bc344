"""The benchmarks of structured output judge answers by another validator, and generate the same
schemas everywhere.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec

import grammars
import pytest
import schemas
import structured
import validity
from support.grammars import END, constraints, tokenizer

from longdraft import InputError
from longdraft.constraints import Grammar

RECORD = {
    "type": "object",
    "properties": {"kind": {"enum": ["red", "blue"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
CASE = schemas.Case("red", "flat", RECORD, "Which?")


def tokens_of(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def test_the_schemas_are_200_and_the_same_everywhere():
    found = schemas.cases()
    text = json.dumps([(case.name, case.schema, case.question) for case in found])
    assert len(found) == 200 and len({case.name for case in found}) == 200
    assert 20 <= sum(not case.enforceable for case in found) <= 30
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST
    assert (
        hashlib.sha256(json.dumps([case.schema for case in schemas.cases(1)]).encode()).hexdigest()[
            :16
        ]
        != DIGEST
    )


DIGEST = "a011afb02ff47be9"


def test_schemas_are_accepted_exactly_where_they_can_be_enforced():
    made = constraints()
    for case in schemas.cases()[::7]:
        try:
            made.json_schema(case.schema)
        except InputError:
            assert not case.enforceable, case.name
        else:
            assert case.enforceable, case.name


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ('{"kind": "red"}', "valid"),
        ('{"kind": "green"}', "wrong"),
        ('{"kind": "red"', "wrong"),
        ('{"kind": "red"}}', "wrong"),
    ],
)
@pytest.mark.skipif(
    find_spec("jsonschema") is None, reason="needs jsonschema, which longdraft does not"
)
def test_an_answer_that_ended_is_judged_by_the_schema(said, result):
    grammar = constraints().json_schema(RECORD)
    assert (
        structured.judged(CASE, grammar, [*tokens_of(said), END], tokenizer(), (END,))[0] == result
    )


@pytest.mark.parametrize(
    ("said", "result"), [('{"kind": "r', "cut"), ('{"kind": "g', "wrong"), ('{"kind":"', "wrong")]
)
def test_an_answer_that_was_cut_must_be_able_to_go_on(said, result):
    grammar = constraints().json_schema(RECORD)
    assert structured.judged(CASE, grammar, tokens_of(said), tokenizer(), (END,))[0] == result


def test_masks_in_line_are_not_prepared():
    kept = Grammar.prepare
    with structured.inline(False):
        assert Grammar.prepare is kept
    with structured.inline(True):
        assert Grammar.prepare is not kept
    assert Grammar.prepare is kept


RUN = {"tokens": 10, "passes": 10, "accepted": 0, "drafted": 0, "decode_s": 1.0}
GOOD = {"case": "a", "enforceable": True, "result": "valid", "fault": "", "runs": {"plain": RUN}}


@pytest.mark.parametrize(
    "change",
    [
        {"result": "wrong"},
        {"enforceable": False},
        {"runs": {"plain": RUN, "suffix": RUN | {"equal": False}}},
        {"refused": "why"},
    ],
)
def test_a_fault_is_not_good(change):
    assert structured.is_good(GOOD) and structured.is_good({"refused": "why", "enforceable": False})
    assert not structured.is_good(GOOD | change)


@pytest.mark.skipif(
    find_spec("jsonschema") is None, reason="needs jsonschema, which longdraft does not"
)
def test_the_validator_reads_decimals_and_formats_and_fetches_nothing():
    tenth = validity.checker({"type": "number", "multipleOf": 0.1})
    assert tenth("0.3") is None and tenth("0.35") and tenth("NaN") and tenth("{")
    time = validity.checker({"type": "string", "format": "time"})
    assert time('"17:56:59Z"') is None and time('"17:56:59"') and time('"25:00:00Z"')
    assert (
        validity.checker({"$ref": "https://example.org/x"})("1")
        == "its schema refers to https://example.org/x"
    )


def test_without_the_validator_a_benchmark_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    with pytest.raises(InputError, match="pip install"):
        validity.checker(True)


def test_trees_along_a_text_have_69_nodes_below_it():
    from engines import LLGuidance

    engine = LLGuidance(tokenizer(), 96, (END,))
    tokens = tokens_of('{"kind": "red"}')
    masks = grammars.Masks(engine, CASE, tokenizer(), (END,))
    trees = grammars.trees_along(masks, tokens, 0)
    assert [n for n, _ in trees["text"]] == list(range(len(tokens)))
    assert all(len(paths) == 69 and paths[0] == () for _, paths in trees["tree"])
    taken = masks.times(tokens, trees)
    assert sum(taken["tree"].values()) == 69 * len(trees["tree"])
