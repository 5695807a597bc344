"""Grammars for calls: what they allow is read as calls that follow the functions' schemas, and
nothing else is.
"""

from __future__ import annotations

import json
import re
from functools import cache
from random import Random
from typing import Any

import pytest
from support.formats_of_calls import (
    BERN,
    FILE,
    FORMATS,
    LB,
    OB,
    SCHEMAS,
    B,
    F,
    tokenizer_of,
    tokens_of,
)
from test_calls import dialect_of, found, reply_of, told

from longdraft.constraints import literal
from longdraft.errors import InputError
from longdraft.server.calls.call_grammar import schema_of
from longdraft.server.openai.tools import Function

llguidance = pytest.importorskip(
    "llguidance", reason="grammars are checked with llguidance, which is missing"
)
hf = pytest.importorskip(
    "llguidance.hf", reason="grammars are checked with llguidance, which is missing"
)

FUNCTIONS = [
    Function(name=name, parameters=schema, strict=True) for name, schema in SCHEMAS.items()
]
LF = F.replace('"arguments"', '"parameters"')
TAG = "<tool_call>\n{}\n</tool_call>"
XB = TAG.format("<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>")
XF = TAG.format(
    '<function=read_file>\n<parameter=path>\na "b"\n\n</parameter>\n<parameter=lines>\n[1, '
    "2]\n</parameter>\n"
    "<parameter=deep>\ntrue\n</parameter>\n</function>"
)
NB = "[TOOL_CALLS]weather[ARGS]" + B[33:-1]
NF = "[TOOL_CALLS]read_file[ARGS]" + F[35:-1]
THOUGHT = "<think>\nWhy <b?\n</think>\n\n"
TWO: dict[str, tuple[str, str, str]] = {  # a call, what stands between two, and another
    "coder": (XB, "\n", XF),
    "harmony": (OB, "", ""),
    "hermes": (TAG.format(B), "\n", TAG.format(F)),
    "hermes special": (THOUGHT + TAG.format(B), "\n", TAG.format(F)),
    "hermes text": (TAG.format(B), "\n", TAG.format(F)),
    "listed": (f"<tool_call>[{B}", ", ", f"{F}]</tool_call>"),
    "llama": (LB, "; ", LF),
    "mistral": (f"[TOOL_CALLS][{B}", ", ", f"{F}]"),
    "mistral named": ("[THINK]Why?[/THINK]" + NB, "", NF),
    "r1": (THOUGHT.removeprefix("<think>\n") + TAG.format(B), "\n", TAG.format(F)),
    "think": (THOUGHT + TAG.format(B), "\n", TAG.format(F)),
}
CLOSED = {"listed": "]</tool_call>", "mistral": "]"}  # what one call needs after it
TEXT: dict[str, str] = dict.fromkeys(FORMATS, "I look <a>, for {you}. ")
TEXT |= {
    "harmony": "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant",
    "llama": "",
    "r1": "Why?</think>Look. ",
}


@cache
def words(name: str) -> Any:
    return hf.from_tokenizer(tokenizer_of(name))


def matcher(name: str, least: int, many: bool, functions: Any = FUNCTIONS) -> Any:
    lark = dialect_of(name).grammar(functions, least, many, name == "r1")
    made = llguidance.LLMatcher(words(name), llguidance.LLMatcher.grammar_from_lark(lark))
    assert not made.is_error(), made.get_error()
    return made


def allows(
    name: str, text: str, least: int = 1, many: bool = True, functions: Any = FUNCTIONS
) -> bool:
    tokens = tokens_of(name, text)
    made = matcher(name, least, many, functions)
    return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_are_allowed_and_nothing_else(name):
    first, between, second = TWO[name]
    one = first + CLOSED.get(name, "")
    two = first + between + second
    free = TEXT[name] + one.split("</think>\n\n")[-1].removeprefix("[THINK]Why?[/THINK]")
    assert (
        allows(name, one)
        and allows(name, one, many=False)
        and allows(name, one, 0)
        and allows(name, free, 0)
    )
    assert found(told(reply_of(name), tokens_of(name, one), []))[1] == (BERN,)
    if second:
        assert found(told(reply_of(name), tokens_of(name, two), []))[1] == (BERN, FILE)
        assert allows(name, two) and allows(name, two, 0)
        assert not allows(name, two, many=False) and not allows(name, two, 0, many=False)
    plain = {"harmony": "<|channel|>final<|message|>Yes.", "r1": "So.</think>\nYes."}.get(
        name, "Yes."
    )
    assert allows(name, plain, 0) and not allows(name, plain)
    for wrong in ("rain", "Bern", "7", "more"):
        bad = {
            "rain": one.replace("weather", "rain"),
            "Bern": one.replace("city", "town"),
            "7": two.replace("[1, 2]", '[1, "2"]'),
            "more": one[: len(one) - 1],
        }[wrong]
        if bad not in (one, two):
            assert not allows(name, bad) and (wrong == "more" or not allows(name, bad, 0)), bad
    # another function is the one that must be called
    assert not allows(name, one, functions=FUNCTIONS[1:])


def check(name: str, args: dict[str, Any]) -> None:
    """That arguments follow the schema."""
    schema = SCHEMAS[name]
    types: Any = {"string": str, "array": list, "boolean": bool}
    assert set(schema.get("required", ())) <= set(args)
    for key, about in schema.get("properties", {}).items():
        assert key not in args or isinstance(args[key], types[about["type"]])
    if name == "read_file":
        assert set(args) <= set(schema["properties"]) and all(
            type(line) is int for line in args["lines"]
        )
    assert name != "now" or args == {}


def walk(name: str, seed: int, least: int) -> list[int] | None:
    """Tokens drawn from those that the grammar allows, until it may end; None if that takes too
    long.
    """
    random = Random(seed)
    made = matcher(name, least, True)
    tokens = list[int]()
    likely = {*tokens_of(name, '"}]'), *dialect_of(name).marks.ids.values()}
    ends = set(words(name).eos_tokens)
    for _ in range(600):
        mask = made.compute_bitmask()
        allowed = [
            t
            for t in range(words(name).vocab_size)
            if mask[t // 8] >> (t % 8) & 1 and t not in ends
        ]
        if made.is_accepting() and (not allowed or random.random() < 0.2):
            return tokens
        hot = [t for t in allowed if t in likely]
        tokens.append(random.choice(hot if hot and random.random() < 0.3 else allowed))
        assert made.consume_token(tokens[-1])
    return None


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_whatever_is_generated_is_calls_that_follow_the_schemas(name):
    done = [tokens for seed in range(6) if (tokens := walk(name, seed, 1)) is not None]
    assert done
    for tokens in done:
        content, calls, _ = found(told(reply_of(name), tokens, []))
        # which may say something in its commentary
        assert calls and (not content or name == "harmony")
        for called in calls:
            check(*called)


def test_the_walk_notices_calls_that_follow_no_schema(monkeypatch):
    monkeypatch.setattr(
        "longdraft.server.calls.hermes.object_rule", lambda f: f'"{{\\"name\\": \\"{f.name}\\"}}"'
    )
    with pytest.raises(AssertionError):
        test_whatever_is_generated_is_calls_that_follow_the_schemas("hermes text")


def test_a_schema_that_cannot_be_enforced_is_an_error_for_strict_functions_alone():
    odd = {
        "type": "object",
        "properties": {"a": {"type": "string", "format": "json-pointer"}},
        "required": ["a"],
    }
    lark = [
        dialect_of("hermes").grammar(
            [Function(name="f", parameters=odd, strict=strict)], 1, True, False
        )
        for strict in (True, False)
    ]
    errors = [llguidance.LLMatcher.validate_grammar(text, words("hermes")) for text in lark]
    assert (
        "json-pointer" in errors[0]
        and not errors[1].startswith("ERROR")
        and schema_of(Function(name="f"))["type"]
    )


def test_references_of_a_schema_are_its_own():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "integer"}},
    }
    functions = [Function(name="weather", parameters=schema, strict=True)]
    for name, text in (("hermes", TAG.format(B)), ("coder", XB)):
        text = text.replace("city", "a").replace('"Bern"', "Bern")
        assert allows(name, text.replace("Bern", "7"), functions=functions)
        assert not allows(name, text.replace("Bern", "x"), functions=functions)


CONTENT = literal("red") + " | " + literal("green")
BEFORE = {
    "think": THOUGHT,
    "r1": "Why?</think>",
    "harmony": "<|channel|>final<|message|>",
    "hermes": "",
}


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_text_of_a_structure_follows_reasoning_or_is_beside_calls(name):
    """An answer is a call or such a text; without functions it is such a text."""
    call = TWO[name][0].removeprefix("<think>\n" if name == "r1" else "")
    for functions, accepted in ((FUNCTIONS, ["red", "green"]), ([], ["red"])):
        lark = dialect_of(name).grammar(functions, 0, True, name == "r1", f"({CONTENT})")
        made = llguidance.LLMatcher(words(name), llguidance.LLMatcher.grammar_from_lark(lark))
        assert not made.is_error(), made.get_error()
        for text in accepted:
            assert takes(made, name, BEFORE[name] + text)
        assert not takes(made, name, BEFORE[name] + "blue")
        if name != "harmony":
            assert takes(made, name, call) == bool(functions)


def takes(made: Any, name: str, text: str) -> bool:
    """Whether a text is whole by a grammar."""
    made.reset()
    tokens = tokens_of(name, text)
    return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()


def tagged(given: dict[str, str]) -> str:
    """A call by tags with these parameters."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
    return TAG.format(f"<function=weather>\n{body}</function>")


def a(**about: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", **about}}, "required": ["a"]}


Q = {"$defs": {"q": {"enum": ["x", "y"]}, "p": a(), "r": a(enum=["x"])}}
ENFORCED: list[
    tuple[dict[str, Any], list[Any], list[Any]]
] = [  # a schema, what it allows, and what it does not
    (a(pattern="^[a-z]{2}\\d$"), ["ab1"], ["ab", "ab1x", "xab1", "ab1\n"]),
    (a(pattern="b+/"), ["xb/", "b/x\ny"], ["xb"]),
    (a(const="x"), ["x"], ["y", ""]),
    (a(minLength=2, maxLength=3), ["ab", "abc", "a\nb"], ["a", "abcd"]),
    (a(format="date"), ["2026-11-27"], ["2026-13-27", "x"]),
    (a(format="email", minLength=9), ["me@some.org"], ["m@e.org", "no address"]),
    (
        a() | {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/q"}, {"enum": ["z"]}]}}} | Q,
        ["x", "z"],
        ["w"],
    ),
    (a(anyOf=[{"enum": ["x"]}, {"pattern": "^q+$"}]), ["x", "qq"], ["w", ""]),
    (a(oneOf=[{"const": "x"}, {"const": "y"}]), ["x", "y"], ["w"]),
    (a(allOf=[{"pattern": "x"}, {"pattern": "y"}]), ["xy", "y x"], ["x", "y"]),
    ({"$ref": "#/$defs/p"} | Q, ["any", ""], [None]),
    ({"$ref": "#/$defs/r"} | Q, ["x"], ["y", None]),
    ({"allOf": [{"$ref": "#/$defs/p"}, a(maxLength=1)]} | Q, ["x"], ["xy", None]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["7", None], ["x"]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED, ids=str)
def test_all_that_a_strict_schema_says_of_texts_is_enforced(schema, right, wrong):
    """What is allowed is read as it was written. None: a call without the parameter."""
    functions = [Function(name="weather", parameters=schema, strict=True)]
    for text in [*right, *wrong]:
        call = tagged({} if text is None else {"a": text})
        assert allows("coder", call, functions=functions) == (text in right), text
        if text in right and text != "7":
            reader = dialect_of("coder").reader({"weather": schema}, False, None, True)
            parts = reader.push(call) + reader.end()
            given = "".join(part.text for part in parts if part.kind == "arguments")
            assert json.loads(given) == ({} if text is None else {"a": text})


def test_a_bound_value_ends_where_the_grammar_says():
    """Marks inside a value are its text, so nothing that the grammar has not seen becomes a
    parameter.
    """
    functions = [
        Function(
            name="weather",
            parameters=a() | {"properties": {"a": {"type": "string"}, "b": {"const": "x"}}},
        )
    ]
    inner = "1\n<parameter=b>\ny"
    assert allows("coder", tagged({"a": inner}), functions=functions)
    for bound, given in ((True, {"a": inner}), (False, {"a": "1", "b": "y"})):
        reader = dialect_of("coder").reader(
            {"weather": functions[0].parameters}, False, None, bound
        )
        parts = reader.push(tagged({"a": inner})) + reader.end()
        assert json.loads("".join(part.text for part in parts if part.kind == "arguments")) == given


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (a(format="uri"), "'a': its format 'uri' cannot"),
        (a(pattern="^a|b$"), "its pattern '^a|b$' cannot"),
        (a(pattern="(?=x)"), "its pattern '(?=x)' cannot"),
        (a(**{"not": {"const": "x"}}), "its keyword 'not' cannot"),
        (a(oneOf=[{"pattern": "x"}, {"pattern": "y"}]), "its keyword 'oneOf' cannot"),
        (a(enum=["x"], const="y"), "no text is allowed"),
        ({"anyOf": [a(), {"properties": {"b": {}}}]}, "'anyOf' of its parameters cannot"),
        ({"type": "object", "properties": {"a>": {}}}, "cannot have a parameter 'a>'"),
    ],
    ids=str,
)
def test_what_tags_cannot_enforce_is_refused_for_strict_functions_alone(schema, words):
    with pytest.raises(InputError, match=re.escape(words)):
        matcher("coder", 1, True, [Function(name="weather", parameters=schema, strict=True)])
    if "format" in words or "pattern" in words or "keyword" in words or "anyOf" in words:
        assert allows(
            "coder", tagged({"a": "x"}), functions=[Function(name="weather", parameters=schema)]
        )


def test_alternatives_that_grow_without_an_end_are_refused_soon():
    parts = {
        f"a{i}": {
            "anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"pattern": f"{i}", "type": "string"}] * 2
        }
        for i in range(30)
    }
    parts |= {"a30": {"anyOf": [{"$ref": f"#/$defs/a{i}"} for i in range(30)]}}
    schema = a() | {"properties": {"a": {"$ref": "#/$defs/a0", "type": "string"}}, "$defs": parts}
    lark = dialect_of("coder").grammar(
        [Function(name="weather", parameters=schema)], 1, True, False
    )
    assert len(lark) < 1 << 20
