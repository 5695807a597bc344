"""Calls after [TOOL_CALLS]: a list of objects, or since 2025 a name, [ARGS] and the arguments."""

from __future__ import annotations

import re
from secrets import token_hex

from longdraft.constraints import literal
from longdraft.server.calls.answer_reader import AnswerReader, Steps
from longdraft.server.calls.call_grammar import (
    GrammarRules,
    RequiredCalls,
    arguments_rule,
    object_rule,
)
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.format_marks import Marks
from longdraft.server.calls.ways import Way, read_marked

CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
ID = "[CALL_ID]"


class Mistral(CallFormat):
    """Reads both ways of writing calls.

    named: the template has the newer one, which grammars then follow.
    """

    names = (CALLS, ARGS, ID)

    def __init__(self, marks: Marks, template: str):
        super().__init__(marks, template)
        self.named = ARGS in template
        args = re.escape(marks[ARGS])
        id = re.escape(marks[ID])
        self._head = re.compile(
            rf"\s*([\w-]{{1,64}})\s*(?:{id}\s*\w*\s*)?{args}\s*(?=\{{\s*[\"}}])"
        )
        self._begun = re.compile(
            rf"\s*(?:[\w-]{{1,64}}\s*(?:{id}\s*\w*\s*)?(?:{args}\s*(?:\{{\s*)?)?)?$"
        )

    @staticmethod
    def call_id() -> str:
        """Templates refuse ids of any other form."""
        return token_hex(5)[:9]

    @property
    def ways(self) -> tuple[Way, ...]:
        return (Way(self.marks[CALLS], "", self._read),)

    def _read(self, reader: AnswerReader, begin: int) -> Steps[bool]:
        first = yield from reader.space(begin)
        written = first is not None and reader.rest[first] in "[{<`"
        if written:
            return (yield from read_marked(reader, begin))
        return (yield from self._named(reader, begin))

    def _named(self, reader: AnswerReader, begin: int) -> Steps[bool]:
        while not (head := self._head.match(reader.rest, begin)):
            text = reader.rest[begin:]
            for mark in (self.marks[ARGS], self.marks[ID]):
                text = _without_begun(text, mark)
            if not self._begun.match(text) or not (yield from reader.more()):
                return False
        if head[1] not in reader.schemas:
            return False
        reader.drop(head.end())
        reader.call(head[1])
        yield from reader.arguments()
        return True

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        opened = self.marks.lark(CALLS)
        if self.named:
            bodies = [
                f"{literal(f.name)} {self.marks.lark(ARGS)} {arguments_rule(f)}"
                for f in asked.functions
            ]
            calls = rules.add("calls", asked.calls(rules.choice("function", bodies), opened))
        else:
            id = r'", \"id\": \"" /[a-zA-Z0-9]{9}/ "\""'
            bodies = [
                object_rule(f).removesuffix(' "}"') + f' ({id})? "}}"' for f in asked.functions
            ]
            call = rules.choice("function", bodies)
            calls = rules.add("calls", f'"[" {asked.calls(call, literal(", "))} "]"')
        if asked.least:
            return f"{opened} {calls}"
        return f"{rules.upto('before', self.marks, CALLS)} {calls} | {rules.any()}"


def _without_begun(text: str, mark: str) -> str:
    """A text without the beginning of a mark at its end, of which the rest has not come yet."""
    for length in range(len(mark) - 1, 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text
