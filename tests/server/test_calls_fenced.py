"""Calls in code fences, in other tags, or with a tag missing are read at every split; texts that
resemble them stay text.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.formats_of_calls import B, R
from test_calls import dialect_of
from test_calls_written import read, strict

from longdraft.server.calls import value, ways
from longdraft.server.calls.answer_reader import AnswerPart
from longdraft.server.calls.ways import Calls

BERN = ("weather", {"city": "Bern"})
ROME = ("weather", {"city": "Rome"})
FILE = ("read_file", {"path": "a.py", "lines": [1, 2]})
TAGS = "<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>"
OPEN_STRING = B.removesuffix('"}}') + '"'  # a string is the last that is closed

# typical answers of a model of 1.5B parameters to a coding agent: content and calls
TYPICAL: list[tuple[str, str, list[tuple[str, Any]]]] = [
    (f"```json\n{B}\n```", "", [BERN]),
    (
        '```json\n{\n  "name": "read_file",\n  "arguments": {\n    "path": "a.py",\n'
        '    "lines": [1, 2]\n  }\n}\n```',
        "",
        [FILE],
    ),
    (f"```xml\n<tool_call>\n{B}\n</tool_call>\n```", "", [BERN]),
    (f"```JSON\n[\n  {B},\n  {R}\n]\n```", "", [BERN, ROME]),
    (f"```xml\n<function>\n{B}\n</function>\n```", "", [BERN]),
    (f"```plaintext\n<tools>\n{B}\n</tools>\n```", "", [BERN]),
    (f"```json\n{B}\n```\n\n```json\n{R}\n```", "", [BERN, ROME]),
    (
        f"I need the weather. ```json\n{B}\n```\n\nThen I answer.",
        "I need the weather.\n\nThen I answer.",
        [BERN],
    ),
    (f"{B}\n</tool_call>", "", [BERN]),
    ("```python\nprint('Bern')\n```", "```python\nprint('Bern')\n```", []),
]
CALLS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    *TYPICAL,
    (f"<function>{B}</function> Done.", " Done.", [BERN]),
    (f"<function>\n{TAGS}\n</function>", "", [BERN]),
    (f"<function>\n{B}", "", [BERN]),
    (f"<tools>{B}\n{R}</tools>", "", [BERN, ROME]),
    (f"```html\n{TAGS}\n```", "", [BERN]),
    (f"```\n<tool_call>\n{B}\n```", "", [BERN]),
    (f"I look at it now {B}\n</tool_call>", "I look at it now", [BERN]),
    (f"I look at it now {B}</tools>", "I look at it now", [BERN]),
    (f"<tool_call>\n{OPEN_STRING}\n</tool_call>\nDone.", "\nDone.", [BERN]),
    (f"<tools>\n{OPEN_STRING}\n</tools>\nDone.", "\nDone.", [BERN]),
    (f"```json\n{OPEN_STRING}\n```\nDone.", "\nDone.", [BERN]),
    (
        '```json\n{"name": "read_file", "arguments": {"path": "a.py", "lines": [1, 2\n```\nDone.',
        "\nDone.",
        [FILE],
    ),
    (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "a "</tool_call>" b"}}\n'
        "</tool_call>",
        "",
        [("weather", {"city": 'a "</tool_call>" b'})],
    ),
    (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "say "a"\n```\nb"}}\n</tool_call>',
        "",
        [("weather", {"city": 'say "a"\n```\nb'})],
    ),
]
OTHER = B.replace("weather", "rain")
DEFINITION = '{"type": "function", "function": {"name": "weather", "description": "It rains."}}'
TEXTS = [
    f"```json\n{OTHER}\n```",
    f"```xml\n<tool_call>\n{OTHER}\n</tool_call>\n```",
    f"<function>{OTHER}</function>",
    f"It is {OTHER}\n</tool_call>",
    '```json\n{"city": "Bern"}\n```',
    '```json\n{"name": "weather", "version": "1.0"}\n```',
    f"```python\nCALL = {B}\n{B}\n```",
    f'```python\nEXAMPLE = """\n<tools>\n{B}\n</tools>\n"""\n```',
    f'```python\nEXAMPLE = """\n<function>\n{B}\n</function>\n"""\n```',
    f"```bash\n{B}\n```",
    f"```text\n{B}\n```",
    f"Look: ```python\nCALLS = [\n{B},\n]\n```",
    f"Write: ```{B}``` on a line.",
    f"Write ```json\n{OTHER}\n``` there.",
    f"The answer {B} is JSON.",
    f"The answer {B} <tool> is JSON.",
    f"`{B}</tool_call>` closes it.",
    "The list of <tools> and a <function> with </function>.",
    "Tools are in <tools></tools>: <function>weather</function> is one.",
    f"<tools>\n{DEFINITION}\n</tools>",
    "a <functional> b <function",
]


def splits(text: str) -> list[list[int]]:
    """All in one piece, character by character, and in two pieces at each position."""
    return [[], list(range(len(text))), *([i] for i in range(1, len(text)))]


def check(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    for cuts in splits(text):
        said, made, _ = read(name, text, cuts)
        assert (said, [(call, strict(arguments)) for call, arguments in made]) == (
            content,
            calls,
        ), cuts


@pytest.mark.parametrize("name", ["hermes text", "coder"])
@pytest.mark.parametrize(("text", "content", "calls"), CALLS, ids=str)
def test_a_call_is_read_at_every_split(name, text, content, calls):
    check(name, text, content, calls)


@pytest.mark.parametrize("name", ["hermes text", "coder", "llama"])
@pytest.mark.parametrize("text", TEXTS, ids=str)
def test_a_text_stays_text_at_every_split(name, text):
    if name == "llama" and "<tool_call>" in text:
        return
    check(name, text, text, [])


def test_at_least_eight_of_ten_typical_answers_are_calls():
    made = [read("hermes text", text, [])[1] for text, _, _ in TYPICAL]
    assert len(made) == 10 and sum(map(bool, made)) >= 8
    assert sum(text.startswith("```") for text, _, _ in TYPICAL) >= 7


@pytest.mark.parametrize("text", [text for text, _, _ in CALLS] + TEXTS, ids=str)
def test_nothing_is_a_call_where_a_grammar_binds_the_answer_or_nothing_is_offered(text):
    for schemas, bound in (({}, False), ({"other": {}}, False), ({"other": {}}, True)):
        reader = dialect_of("hermes text").reader(schemas, False, None, bound)
        parts = reader.push(text) + reader.end()
        assert "".join(part.text for part in parts) == text
        assert {part.kind for part in parts} == {"content"}


PIECES = [
    *(text for text, _, _ in CALLS),
    *TEXTS,
    *(
        "<think>",
        "</think>",
        "```",
        "```json\n",
        "<function>",
        "</function>",
        "<tools>",
        "</tools>",
    ),
    *("\n", " ", "It is. ", "{", "}", '"', "`", "<", "</tool_call>", OPEN_STRING, B),
]


@pytest.mark.full
@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["hermes text", "coder", "think", "r1", "llama", "mistral"]),
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.lists(st.integers(0, 300), max_size=8),
    st.integers(0, 400),
    st.booleans(),
)
def test_splits_change_nothing_in_any_combination(name, pieces, cuts, end, cut):
    """Also where the text ends anywhere, and with the texts in reasoning."""
    text = "".join(pieces)[: None if end % 2 else end]
    whole = read(name, text, [], cut)
    assert read(name, text, cuts, cut) == whole == read(name, text, list(range(len(text))), cut)
    assert cut or all(isinstance(json.loads(arguments), dict) for _, arguments in whole[1])


@pytest.mark.parametrize(
    "call",
    [
        f"```xml\n<function>\n{B}\n</function>\n```",
        f"```json\n{B}\n```",
        f"<function>{B}",
        f"<tools>\n{B}\n</tools>",
        f"<tool_call>\n{OPEN_STRING}\n</tool_call>",
    ],
    ids=str,
)
def test_a_call_in_reasoning_that_never_closes_is_read_at_every_split(call):
    text = f"<think>\nI call it.\n{call}"
    for cuts in splits(text):
        content, calls, reasoning = read("think", text, cuts)
        assert (content, reasoning) == ("", "I call it.")
        assert [(name, strict(arguments)) for name, arguments in calls] == [BERN]
    closed = f"{text}\n</think>\nDone."
    assert read("think", closed, []) == ("Done.", [], f"I call it.\n{call}")


# what decides that a text is none, at its end: nothing is held back any more
DECIDED = [
    "```json\n" + '{"name": "rain"',
    '```json\n{"city"',
    "```python\nx",
    "```text\n{",
    "Look: ```python x",
    "<functional",
    "<function>w",
    "<tools> a",
    'It is {"name": "rain"',
    'It is {"city"',
    f"It is {B} a",
    f"It is {B}</b",
]


@pytest.mark.parametrize("text", DECIDED, ids=str)
def test_text_is_held_back_only_while_it_may_become_a_call(text):
    reader = dialect_of("hermes text").reader({"weather": {}}, False, None)
    said = "".join(part.text for char in text for part in reader.push(char))
    assert said == text


@pytest.mark.parametrize(
    "opener", ["<function>\n", "<tools>\n", "```json\n", "```xml\n<function>\n"]
)
def test_arguments_are_given_out_as_they_come(opener):
    reader = dialect_of("hermes text").reader({"weather": {}}, False, None)
    assert reader.push(opener) == []
    assert reader.push('{"name": "weather", "arguments": {"ci') == [
        AnswerPart("call", "weather"),
        AnswerPart("arguments", '{"ci'),
    ]
    assert reader.push('ty": "B') == [AnswerPart("arguments", 'ty": "B')]


def never(*args: Any) -> Any:
    """Finds no reason against a call."""
    yield from ()
    return True


FAULTS = {
    "the first mark that fits": (ways, "max", lambda found, **key: found[-1] if found else None),
    "inline code": (Calls, "_begins_fence", never),
    "objects that call no function": (ways, "calls_offered", lambda *args: False),
    "ends of objects in strings": (value.Value, "_may_end", lambda self: True),
    "open objects": (value.Value, "_may_end", lambda self: False),
    "languages of programs": (ways, "LANGUAGES", {"", "json", "xml", "python", "bash", "text"}),
    "calls in programs": (Calls, "_possible", lambda self, before: [*self.ways, ways.FENCED_WAY]),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_planted_faults_are_noticed(fault, monkeypatch):
    place, name, wrong = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong, raising=False)

    def caught(text: str, content: str, calls: list[tuple[str, Any]]) -> bool:
        try:
            check("hermes text", text, content, calls)
        except AssertionError:
            return True
        return False

    assert any(caught(*case) for case in [*CALLS, *((text, text, []) for text in TEXTS)])
