"""Calls and reasoning in answers: found in every format, however tokens come, and nothing that is
said is lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.formats_of_calls import ANSWERS, FORMATS, SCHEMAS, Said, tokenizer_of, tokens_of

from longdraft.engine.session import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.models.text import text_of
from longdraft.server.calls.answer_reader import AnswerPart
from longdraft.server.calls.dialect import Dialect, format_of
from longdraft.server.calls.ways import Calls
from longdraft.server.decode.chat_reply import ChatReply
from longdraft.server.decode.reply import Delta
from longdraft.server.openai.messages import message_of

KINDS = {
    "coder": "Coder",
    "harmony": "Harmony",
    "listed": "Hermes",
    "llama": "Llama",
    "mistral": "Mistral",
    "mistral named": "Mistral",
}


def dialect_of(name: str) -> Dialect:
    return Dialect(tokenizer_of(name), FORMATS[name][0])


def reply_of(
    name: str, stops: tuple[str, ...] = (), schemas: Any = SCHEMAS, most: int | None = None
) -> ChatReply:
    dialect = dialect_of(name)
    reader = dialect.reader(schemas, name == "r1", most)
    return ChatReply(tokenizer_of(name), list(stops), reader, dialect.marks.shown)


def told(reply: ChatReply, tokens: list[int], cuts: list[int], ended: str = "eos") -> list[Delta]:
    """What a reply says of tokens that come in events cut at these places, and an end token."""
    tokens = tokens + [0] * (ended == "eos")
    low = 0
    deltas = []
    for high in sorted({min(c, len(tokens)) for c in cuts if c > 0} | {len(tokens)}):
        logprobs = [TokenLogprobs(t, -1.0, []) for t in tokens[low:high]]
        end = ended if high == len(tokens) else None
        deltas.append(reply.take(Event(1, tokens[low:high], end, logprobs=logprobs)))
        low = high
    return deltas


def found(deltas: list[Delta]) -> tuple[str, tuple[tuple[str, Any], ...], str]:
    """Content, calls and reasoning."""
    message = message_of(sum(deltas, Delta()).parts, lambda: "id")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    read = tuple((call["name"], json.loads(call["arguments"])) for call in calls)
    return message["content"] or "", read, message.get("reasoning_content", "")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_format_is_found_in_the_template(name):
    kind = format_of(FORMATS[name][0])
    assert kind is not None and kind.__name__ == KINDS.get(name, "Hermes")
    assert (
        format_of("{{ tools }}{{ messages }}") is None
        and format_of("<tool_call><arg_key>{{ tools }}") is None
    )


@pytest.mark.parametrize("said", ANSWERS, ids=lambda said: f"{said.format}: {said.text[:60]!r}")
def test_an_answer_has_the_calls_that_it_says(said: Said):
    tokens = tokens_of(said.format, said.text)
    every = list(range(1000))
    for cuts in ([], every, every[::3]):
        reply = reply_of(said.format)
        deltas = told(reply, tokens, cuts)
        assert found(deltas) == (said.content, said.calls, said.reasoning)
        assert deltas[-1].finish == ("tool_calls" if said.calls else "stop")
        assert "".join(d.text for d in deltas) == said.content
        # none for the end token
        assert sum(len(d.logprobs) for d in deltas) == reply.tokens - 1 == len(tokens)
        assert reply.reasoning_tokens > 0 if said.reasoning else reply.reasoning_tokens <= 6


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(
        st.sampled_from([s.text for s in ANSWERS] + ["{", "é漢", '"', "\n", "<", "\\", "]", ";"]),
        max_size=4,
    ),
    st.lists(st.integers(0, 200), max_size=9),
    st.lists(st.integers(0, 200), max_size=2),
)
def test_any_answer_is_read_the_same_however_it_comes(name, texts, cuts, dropped):
    """Without an exception, and with as many log-probabilities as tokens."""
    tokens = tokens_of(name, "".join(texts))
    tokens = [t for i, t in enumerate(tokens) if i not in dropped]
    once, pieces = (told(reply_of(name), tokens, c, "length") for c in ([], cuts))
    assert sum(once, Delta()) == sum(pieces, Delta())
    assert all(
        char < "\ufdd0" or char > "\ufdef"
        for part in sum(once, Delta()).parts
        for char in part.text
    )


@given(st.text(st.sampled_from("<tol_ca>{}[]\"' \n:,é\\name"), max_size=40), st.booleans())
def test_text_without_calls_is_not_changed(text, think):
    """Of a format whose marks are text: all of it is content."""
    name = "hermes text"
    assert found(told(reply_of(name), tokens_of(name, text), list(range(50)))) == (text, (), "")


def test_content_is_given_out_as_soon_as_it_cannot_begin_a_call():
    reader = dialect_of("hermes text").reader(SCHEMAS, False, None)
    assert [
        reader.push(piece)
        for piece in ("I look <too", "l", "s> x", "\n<tool_call>\n", '{"name": "weath')
    ] == [
        [AnswerPart("content", "I look")],
        [],
        [AnswerPart("content", " <tools> x")],
        [],
        [],
    ]
    assert reader.push('er", "arguments": {"ci') == [
        AnswerPart("call", "weather"),
        AnswerPart("arguments", '{"ci'),
    ]
    assert reader.push('ty": "B') == [AnswerPart("arguments", 'ty": "B')]
    assert reader.push('ern"}}\n</tool') == [AnswerPart("arguments", 'ern"}')]
    assert reader.push("_call>") + reader.end() == []


BARE: dict[
    str, tuple[str, int]
] = {  # an answer without tags: its content, and how many calls it has
    '{"name": "now", "arguments": {}}': ("", 1),
    ' {"name": "now", "arguments": {}}\n{"name": "weather", "arguments": {"city": "Bern"}}\n': (
        "",
        2,
    ),
    '[{"name": "now", "arguments": {}}, {"name": "now"}]': ("", 2),
    '{"name": "now", "arguments": {}} and <tool_call>{"name": "now", "arguments": '
    "{}}</tool_call>": (
        "and",
        2,
    ),
    '{"name": "other", "arguments": {}}': ('{"name": "other", "arguments": {}}', 0),
    'So {"name": "now", "arguments": {}}': ('So {"name": "now", "arguments": {}}', 0),
    '{"now": 1}': ('{"now": 1}', 0),
}


@pytest.mark.parametrize("text", sorted(BARE))
@pytest.mark.parametrize("bare", [True, False])
def test_an_answer_that_begins_with_a_call_needs_no_tags(text, bare):
    """Unless a grammar leaves that text free, where it could break a strict function's schema."""
    for size in (1, 7, len(text)):
        reader = dialect_of("hermes text").reader(SCHEMAS, False, None, bound=not bare)
        parts = [
            part for i in range(0, len(text), size) for part in reader.push(text[i : i + size])
        ] + reader.end()
        content = "".join(part.text for part in parts if part.kind == "content")
        if bare:
            assert (content.strip(), reader.calls) == BARE[text]
        else:
            assert reader.calls == text.count("<tool_call>") and content


def test_at_most_one_call_ends_the_answer():
    for cuts in ([], list(range(300))):
        text = (
            '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>{"name": '
            '"now"}</tool_call> more'
        )
        reply = reply_of("hermes", most=1)
        deltas = told(reply, tokens_of("hermes", text), cuts)
        assert found(deltas) == ("", (("now", {}),), "") and [
            d.finish for d in deltas if d.finish
        ] == ["tool_calls"]
        assert reply.tokens == sum(len(d.logprobs) for d in deltas) < 40 and reply.finish == "stop"


def test_without_functions_nothing_is_a_call_and_no_mark_is_text():
    for said in (s for s in ANSWERS if s.calls):
        content, calls, _ = found(
            told(reply_of(said.format, schemas={}), tokens_of(said.format, said.text), [])
        )
        assert (
            calls == () and content and not any(mark in content for mark in FORMATS[said.format][1])
        )


def test_a_cut_call_is_not_finished():
    deltas = told(
        reply_of("hermes"),
        tokens_of("hermes", '<tool_call>{"name": "weather", "arguments": {"ci'),
        [],
        "length",
    )
    assert deltas[-1].finish == "length" and deltas[-1].parts == [
        AnswerPart("call", "weather"),
        AnswerPart("arguments", '{"ci'),
    ]


def test_other_special_tokens_are_no_text():
    text = "a<|im_start|>b"
    assert text_of(tokenizer_of("hermes"), tokens_of("hermes", text)) == "ab"
    assert found(told(reply_of("hermes"), tokens_of("hermes", text), [])) == ("ab", (), "")


def hasty(self: Calls, at: int) -> Any:
    """Waits for no more of a mark."""
    yield from ()
    return next((way for way in self.ways if self.rest.startswith(way.opens, at)), None)


def test_a_reader_that_holds_nothing_back_is_noticed(monkeypatch):
    monkeypatch.setattr(Calls, "_way", hasty)
    said = next(s for s in ANSWERS if s.format == "hermes text" and s.calls)
    with pytest.raises(AssertionError):
        test_an_answer_has_the_calls_that_it_says(said)
