"""Grammars for calls: what they allow is read as calls that follow the functions' schemas, and nothing else is."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest
from support.formats_of_calls import BERN, FILE, FORMATS, LB, OB, SCHEMAS, B, F, tokenizer_of, tokens_of
from test_calls import dialect_of, found, reply_of, told

from longdraft.constraints import literal
from longdraft.server.calls.grammar import schema_of
from longdraft.server.tools import Function

llguidance = pytest.importorskip("llguidance", reason="grammars are checked with llguidance, which is missing")
hf = pytest.importorskip("llguidance.hf", reason="grammars are checked with llguidance, which is missing")

FUNCTIONS = [Function(name=name, parameters=schema, strict=True) for name, schema in SCHEMAS.items()]
LF = F.replace('"arguments"', '"parameters"')
TAG = "<tool_call>\n{}\n</tool_call>"
XB = TAG.format("<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>")
XF = TAG.format(
    '<function=read_file>\n<parameter=path>\na "b"\n\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n'
    "<parameter=deep>\ntrue\n</parameter>\n</function>"
)
NB, NF = ("[TOOL_CALLS]weather[ARGS]" + B[33:-1], "[TOOL_CALLS]read_file[ARGS]" + F[35:-1])
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


def allows(name: str, text: str, least: int = 1, many: bool = True, functions: Any = FUNCTIONS) -> bool:
    tokens, made = tokens_of(name, text), matcher(name, least, many, functions)
    return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_are_allowed_and_nothing_else(name):
    first, between, second = TWO[name]
    one, two = first + CLOSED.get(name, ""), first + between + second
    free = TEXT[name] + one.split("</think>\n\n")[-1].removeprefix("[THINK]Why?[/THINK]")
    assert allows(name, one) and allows(name, one, many=False) and allows(name, one, 0) and allows(name, free, 0)
    assert found(told(reply_of(name), tokens_of(name, one), []))[1] == (BERN,)
    if second:
        assert found(told(reply_of(name), tokens_of(name, two), []))[1] == (BERN, FILE)
        assert allows(name, two) and allows(name, two, 0)
        assert not allows(name, two, many=False) and not allows(name, two, 0, many=False)
    plain = {"harmony": "<|channel|>final<|message|>Yes.", "r1": "So.</think>\nYes."}.get(name, "Yes.")
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
    assert not allows(name, one, functions=FUNCTIONS[1:])  # another function is the one that must be called


def check(name: str, args: dict[str, Any]) -> None:
    """That arguments follow the schema."""
    schema = SCHEMAS[name]
    types: Any = {"string": str, "array": list, "boolean": bool}
    assert set(schema.get("required", ())) <= set(args)
    for key, about in schema.get("properties", {}).items():
        assert key not in args or isinstance(args[key], types[about["type"]])
    if name == "read_file":
        assert set(args) <= set(schema["properties"]) and all(type(line) is int for line in args["lines"])
    assert name != "now" or args == {}


def walk(name: str, seed: int, least: int) -> list[int] | None:
    """Tokens drawn from those that the grammar allows, until it may end; None if that takes too long."""
    random, made, tokens = Random(seed), matcher(name, least, True), list[int]()
    likely = {*tokens_of(name, '"}]'), *dialect_of(name).marks.ids.values()}
    ends = set(words(name).eos_tokens)
    for _ in range(600):
        mask = made.compute_bitmask()
        allowed = [t for t in range(words(name).vocab_size) if mask[t // 8] >> (t % 8) & 1 and t not in ends]
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
        assert calls and (not content or name == "harmony")  # which may say something in its commentary
        for called in calls:
            check(*called)


def test_the_walk_notices_calls_that_follow_no_schema(monkeypatch):
    monkeypatch.setattr("longdraft.server.calls.hermes.object_rule", lambda f: f'"{{\\"name\\": \\"{f.name}\\"}}"')
    with pytest.raises(AssertionError):
        test_whatever_is_generated_is_calls_that_follow_the_schemas("hermes text")


def test_a_schema_that_cannot_be_enforced_is_an_error_for_strict_functions_alone():
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "json-pointer"}}, "required": ["a"]}
    lark = [
        dialect_of("hermes").grammar([Function(name="f", parameters=odd, strict=strict)], 1, True, False)
        for strict in (True, False)
    ]
    errors = [llguidance.LLMatcher.validate_grammar(text, words("hermes")) for text in lark]
    assert "json-pointer" in errors[0] and not errors[1].startswith("ERROR") and schema_of(Function(name="f"))["type"]


def test_references_of_a_schema_are_its_own():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    functions = [Function(name="weather", parameters=schema, strict=True)]
    for name, text in (("hermes", TAG.format(B)), ("coder", XB)):
        text = text.replace("city", "a").replace('"Bern"', "Bern")
        assert allows(name, text.replace("Bern", "7"), functions=functions)
        assert not allows(name, text.replace("Bern", "x"), functions=functions)


CONTENT = literal("red") + " | " + literal("green")
BEFORE = {"think": THOUGHT, "r1": "Why?</think>", "harmony": "<|channel|>final<|message|>", "hermes": ""}


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
