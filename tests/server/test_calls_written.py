"""Calls as models really write them: without their tags, in others', cut off, in reasoning; and
prose that is none.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.formats_of_calls import SCHEMAS, B, R, tokens_of
from test_calls import dialect_of, found, hasty, reply_of, told

from longdraft.server.calls import objects, tags
from longdraft.server.calls.answer_reader import AnswerPart, joined
from longdraft.server.calls.ways import Calls

LOOSE = {
    "types": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "id": {"$ref": "#/$defs/id"},
            "one": {"allOf": [{"type": "string"}, {"minLength": 1}]},
            "two": {"const": "12345"},
            "three": {"anyOf": [{"$ref": "#/$defs/id"}, {"type": "null"}]},
            "four": {"pattern": "^[0-9]+$"},
            "list": {"type": "array"},
        },
        "$defs": {"id": {"type": "string", "pattern": "^[0-9]+$"}},
    }
}
ALL = SCHEMAS | LOOSE
BERN = ("weather", {"city": "Bern"})
CALLS: list[tuple[str, str, str, list[tuple[str, Any]]]] = []  # format, answer, content, calls


def case(names: str, text: str, content: str = "", *calls: tuple[str, Any]) -> None:
    CALLS.extend((name, text, content, list(calls)) for name in names.split(","))


ANY = "hermes,hermes special,coder,llama,mistral"
X = "<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>"
DOUBLED = '{{"name": "weather", "arguments": {"city": "Bern"}}}'
case(ANY, f"I look.\n\n```json\n{B}\n```", "I look.", BERN)
case(ANY, f"```json\n{B}\n{R}\n```\nDone.", "\nDone.", BERN, ("weather", {"city": "Rome"}))
case(ANY, f"```\n[{B}]\n```", "", BERN)
case(ANY, f"I look.\n<tools>\n{B}\n</tools>", "I look.", BERN)
case(ANY, f"I look. {B}", "I look.", BERN)
case(ANY, f"I call this:\n{B}\nand wait", "I call this:\nand wait", BERN)
case(ANY, f"<tool_call>\n{DOUBLED}\n</tool_call>", "", BERN)
case(ANY, DOUBLED.replace('{"city": "Bern"}', '{{"city": "Bern"}}'), "", BERN)
case(ANY, DOUBLED[:-1] + "\n", "", BERN)
case(
    ANY,
    '{"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": '
    '\\"Bern\\"}"}}',
    "",
    BERN,
)
F = B.replace('"name"', '"function"')
case(ANY, F, "", BERN)
case(ANY, f"<tool_call>\n{F}\n</tool_call>", "", BERN)
case(ANY, f"I look.\n{X}\n</tool_call>", "I look.", BERN)
case(ANY, f"<tool_call>\n{X}\n</tool_call>", "", BERN)
case(ANY, f"<tool_call>\n{B}\n</tool_call>", "", BERN)
case(ANY, f"```xml\n<tool_call>\n{X}\n</tool_call>\n```", "", BERN)
case(ANY, X.replace("=weather", '="weather"').replace("=city", '="city"'), "", BERN)
case(ANY, X.replace("=weather", "=weather ").replace("=city", " name='city'"), "", BERN)
case(ANY, '<function=weather>{"city": "Bern"}</function>', "", BERN)
case(ANY, f"<tool_call>{B[:-3]}", "", BERN)  # the end token comes before the last quote
case("coder", X.replace("</parameter>\n", ""), "", BERN)
case("coder", X.replace("\n</function>", ""), "", BERN)
case("coder", X.replace("\n</parameter>\n</function>", ""), "", BERN)
case("coder", X.replace("</parameter>\n</function>", "</tool_call>"), "", BERN)
case("coder", f"<tool_call>{X} Done.", " Done.", BERN)
case("coder", "<tool_call>\n<function=now>\n</tool_call>", "", ("now", {}))
case("coder", "<tool_call>\n<function=now>", "", ("now", {}))
case(
    "coder",
    X.replace("\n</function>", "\n<parameter=city>\nRome\n</parameter>\n</function>"),
    "",
    BERN,
)
for inner in (
    "a</parameter>b",
    "<p>\n</parameter>\n<q>",
    "</function> x",
    "<parameter=city>",
    "</tool_call>!",
):
    case("coder", X.replace("Bern", inner), "", ("weather", {"city": inner}))
FILES = "<function=read_file>\n<parameter=path>\na.py\n<parameter=lines>\n[1, 2]\n</function>"
case("coder", FILES, "", ("read_file", {"path": "a.py", "lines": [1, 2]}))
VALUES = {
    "id": "12345",
    "one": "12345",
    "two": "12345",
    "three": "12345",
    "four": "12345",
    "text": "12345",
}
VALUES |= {"count": 12345, "list": ["a", True]}
TYPED = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in VALUES.items())
case("coder", f"<function=types>\n{TYPED}</function>", "", ("types", VALUES))

PROSE = [
    "Use <function=weather> for that.",
    "The tags are <function=weather> and `<function=now></function>`.",
    "<tool_call>\n<function=weather>\nI do not know the city.",
    '```json\n{"name": "rain", "arguments": {"city": "Bern"}}\n```',
    '```json\n{"name": "weather"}\n```',
    '```json\n{"name": "weather", "arguments": "Bern"}\n```',
    f"```python\nCALLS = [\n{B},\n]\n```",
    f"The format {B} is common, `{B}` too.",
    '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", '
    '"properties": {}}}}',
    '{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": '
    '"string"}}}}',
    '<tools>\n{"name": "weather", "parameters": {"properties": {"city": {}}}}\n</tools>',
    '{"name": "weather", "description": "x", "parameters": {"city": "Bern"}}',
    '{"type": "Point", "name": "weather", "arguments": {}}',
    '{"function": "rain", "arguments": {"city": "Bern"}}',
    '{"function": "weather"}',
    '{"function": "weather", "arguments": {"city": "Bern"}, "unit": "C"}',
    "[a](b) {c} [",
]
for prose in PROSE:
    case(ANY, prose, prose)


def read(
    name: str, text: str, cuts: list[int], cut: bool = False
) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls with their arguments as they were written, and reasoning of a text that comes
    in these pieces.
    """
    reader = dialect_of(name).reader(ALL, name == "r1", None)
    parts = list[AnswerPart]()
    low = 0
    for high in sorted({min(c, len(text)) for c in cuts} | {len(text)}):
        parts += reader.push(text[low:high])
        low = high
    parts = joined(parts + reader.end(cut))
    calls = [
        (
            part.text,
            "".join(p.text for p in parts if p.kind == "arguments" and p.index == part.index),
        )
        for part in parts
        if part.kind == "call"
    ]
    content, reasoning = (
        "".join(p.text for p in parts if p.kind == kind) for kind in ("content", "reasoning")
    )
    return content, calls, reasoning


def strict(text: str) -> Any:
    """JSON's value, without duplicate keys and numbers that JSON does not know."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), text
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique, parse_constant=lambda name: 1 / 0)


def check(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    for cuts in ([], list(range(len(text))), list(range(0, len(text), 7))):
        said, made, _ = read(name, text, cuts)
        assert (said, [(call, strict(given)) for call, given in made]) == (content, calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS, ids=str)
def test_calls_are_read_however_they_are_written_and_prose_stays_prose(name, text, content, calls):
    if name == "hermes special":  # its tags come as special tokens
        deltas = told(reply_of(name, schemas=ALL), tokens_of(name, text), [])
        assert found(deltas)[1] == tuple(calls)
        assert calls == [] or found(deltas)[0] == content
    else:
        check(name, text, content, calls)


PIECES = [text for _, text, _, _ in CALLS] + [
    *(
        "<think>",
        "</think>",
        "{",
        "}",
        "\n",
        "```",
        "<",
        "`",
        "é",
        '"',
        "<tool_call>",
        "</tool_call>",
        "<function=",
    ),
    *("<parameter=city>", "</parameter>", "</function>", "weather>", ", ", "[", "]", ": "),
]


@pytest.mark.full
@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(["hermes text", "coder", "think", "r1", "llama", "mistral"]),
    st.lists(st.sampled_from(PIECES), max_size=5),
    st.lists(st.integers(0, 300), max_size=8),
    st.integers(0, 300),
    st.booleans(),
)
def test_a_split_changes_nothing_and_arguments_are_whole_json(name, pieces, cuts, end, cut):
    """Whatever is written, cut off anywhere, in any pieces. Only a limit on length leaves arguments
    open.
    """
    text = "".join(pieces)[: None if end % 2 else end]
    whole = read(name, text, [], cut)
    assert read(name, text, cuts, cut) == whole == read(name, text, list(range(len(text))), cut)
    assert cut or all(
        isinstance(strict(given), dict)
        for _, given in whole[1]
        if '": "' not in given or strict(given)
    )


THOUGHTS = [
    ("think", f"<think>\nI call.\n<tool_call>\n{B}\n</tool_call>", "I call.", True),
    ("think", f"<think>\nI call.\n{X}", "I call.", True),
    ("think", f"<think>\nI call.\n```json\n{B}\n```", "I call.", True),
    ("r1", f"I call.\n<tool_call>{B}</tool_call>\n", "I call.", True),
    ("mistral named", '[THINK]I call.[TOOL_CALLS]weather[ARGS]{"city": "Bern"}', "I call.", True),
    (
        "harmony",
        f"<|channel|>analysis<|message|>I call.<tool_call>{B}</tool_call>",
        "I call.",
        True,
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>I call.<|channel|>commentary "
        'to=functions.weather<|message|>{"city": "Bern"}',
        "I call.",
        True,
    ),
    (
        "think",
        f"<think>\nI call.\n<tool_call>{B}</tool_call>\n</think>",
        f"I call.\n<tool_call>{B}</tool_call>",
        False,
    ),
    ("r1", f"I may write {B} later.", f"I may write {B} later.", False),
]


@pytest.mark.parametrize(("name", "text", "reasoning", "called"), THOUGHTS, ids=str)
def test_a_call_in_reasoning_that_never_closes_is_made(name, text, reasoning, called):
    """And no other: neither where it closes, nor where a limit cuts it."""
    tokens = tokens_of(name, text)
    for cuts in ([], list(range(len(tokens))), list(range(0, len(tokens), 5))):
        deltas = told(reply_of(name), tokens, cuts)
        assert found(deltas) == ("", (BERN,) if called else (), reasoning)
        assert deltas[-1].finish == ("tool_calls" if called else "stop")
    if called and "<|channel|>commentary" not in text:
        assert found(told(reply_of(name), tokens, [], "length"))[1] == ()
    assert found(told(reply_of(name, schemas={}), tokens, []))[1] == ()


def test_a_call_that_reasoning_goes_on_after_is_made_at_its_end():
    text = f"<think>\nFirst <tool_call>{B}</tool_call>\nThis gets the weather."
    content, calls, reasoning = read("think", text, [])
    assert (content, calls) == ("", [("weather", '{"city": "Bern"}')])
    assert reasoning == text.removeprefix("<think>\n") and read("think", text, list(range(99))) == (
        "",
        calls,
        reasoning,
    )


@pytest.mark.parametrize("name", ["hermes text", "coder", "think"])
def test_stop_strings_apply_to_content_alone(name):
    stops = ("\n\n", "Bern", '"')
    thought = '<think>\nBern\n\n"so"\n</think>\n\n' if name == "think" else ""
    text = f"{thought}I look.\n\n<tool_call>\n{B}\n</tool_call>\nSaid.\n\nMore"
    tokens = tokens_of(name, text)
    for cuts in ([], list(range(999)), list(range(0, 999, 7))):
        reply = reply_of(name, stops)
        deltas = told(reply, tokens, cuts)
        assert found(deltas) == ("I look.\nSaid.", (BERN,), 'Bern\n\n"so"' if thought else "")
        assert [delta.finish for delta in deltas if delta.finish] == ["tool_calls"]
        assert reply.tokens == len(tokens) - 4  # up to the line breaks
        assert sum(len(delta.logprobs) for delta in deltas) == len(
            tokens_of(name, text[: text.index("\n\nMore")])
        )


def plain_end(reader: Any, mark: str, end: int, others: Any) -> Any:
    """A mark in a value ends it whatever follows."""
    yield from ()
    return True


def reads_all(reader: Any, begin: int, marked: bool) -> Any:
    """Takes a function's tag for a call, whatever follows."""
    head = yield from tags._tag(reader, begin, tags.FUNCTION, tags.HEAD)
    if head is None or head[1] not in reader.schemas:
        return False
    reader.drop(head.end())
    reader.call(head[1])
    reader.add("arguments", "{}")
    return True


PLANTED = {
    "marks inside values": (tags, "_ends", plain_end),
    "prose after a tag": ("longdraft.server.calls.ways", "read_function", reads_all),
    "definitions": (objects, "_defines", lambda *given: False),
    "no types": (tags.Schemas, "types", lambda *given: frozenset({"integer"})),
    "half a mark": (Calls, "_way", hasty),
}


@pytest.mark.parametrize("fault", sorted(PLANTED))
def test_planted_faults_are_noticed(fault, monkeypatch):
    place, name, wrong = PLANTED[fault]
    monkeypatch.setattr(
        *((f"{place}.{name}", wrong) if isinstance(place, str) else (place, name, wrong))
    )
    caught = 0
    for one in (one for one in CALLS if one[0] == "coder"):
        try:
            check(*one)
        except AssertionError:
            caught += 1
    assert caught
