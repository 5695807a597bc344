"""Calls between <tool_call> and </tool_call>: Hermes, Qwen, SmolLM2.

Each pair of tags has one object, or one pair has all of them in a list.
"""

from __future__ import annotations

from dataclasses import replace

from longdraft.constraints import literal
from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls, object_rule
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.format_marks import Marks
from longdraft.server.calls.ways import Way, read_marked

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class Hermes(CallFormat):
    """The format of Hermes.

    listed: the template writes all calls as a list between one pair of tags, so grammars do too.
    """

    names = (OPEN, CLOSE)

    def __init__(self, marks: Marks, template: str):
        super().__init__(marks, template)
        self.listed = "<tool_call>[" in template

    @property
    def ways(self) -> tuple[Way, ...]:
        return (Way(self.marks[OPEN], self.marks[CLOSE], read_marked),)

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        call = rules.choice("function", [object_rule(f) for f in asked.functions])
        closed = self.marks.lark(CLOSE)
        if self.listed:
            rest = rules.add("calls", f'"[" {asked.calls(call, literal(", "))} "]" {closed}')
            asked = replace(asked, many=False)
        else:
            rest = rules.add("calls", f'"\\n" {call} "\\n" {closed}')
        return tagged(rules, asked, self.marks, rest)


def tagged(rules: GrammarRules, asked: RequiredCalls, marks: Marks, rest: str) -> str:
    """The rule for calls that begin with a tag, on separate lines, or for text with such calls."""
    if asked.least:
        return asked.calls(f"{marks.lark(OPEN)} {rest}", literal("\n"))
    call = f"{rules.upto('before', marks, OPEN)} {rest}"
    return f"({call})* {rules.any()}" if asked.many else f"{call} | {rules.any()}"
