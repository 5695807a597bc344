"""The messages of gpt-oss, in channels.

There is one for reasoning (analysis), for calls (commentary to a function), and for content
(final).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from longdraft.constraints import literal
from longdraft.server.calls.answer_reader import AnswerReader, Steps
from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls, arguments_rule
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.format_marks import Marks

CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
START = "<|start|>"
END = "<|end|>"
CALL = "<|call|>"
RETURN = "<|return|>"
MAX_HEADER = 256  # characters of a header
TO = re.compile(r"to=functions\.([\w-]+)")


class Harmony(CallFormat):
    """The format of gpt-oss: every message has a header, which ends with <|message|>.

    The prompt has the beginning of the first header, <|start|>assistant. An answer that has no
    header is content.
    """

    names = (CHANNEL, MESSAGE, CONSTRAIN, START, END, CALL, RETURN)
    ends = (CALL, RETURN)

    def __init__(self, marks: Marks, template: str):
        super().__init__(marks, template)
        # of the next message, whether or not the last one has its end
        self._begins = (
            marks[CHANNEL],
            marks[START],
        )
        self._ends = (*(marks[name] for name in (END, CALL, RETURN)), *self._begins)
        self._analysis = re.compile(re.escape(marks[CHANNEL]) + r"\s*analysis")

    def read(self, reader: AnswerReader, watch: Callable[[], AnswerReader | None]) -> Steps[None]:
        """Read an answer.

        watch: makes a reader for calls in reasoning (see AnswerReader.reason).
        """
        while not reader.full:
            begin = reader.taken
            header = yield from self._header(reader)
            if header is None:
                return
            if (to := TO.search(header)) and to[1] in reader.schemas:
                yield from self._call(reader, to[1])
            elif self._analysis.search(header):
                yield from self._body(reader, "reasoning", watch())
                reader.thoughts.append((begin, reader.taken))
            else:
                yield from self._body(reader, "content")

    def _header(self, reader: AnswerReader) -> Steps[str | None]:
        """The next message's header; empty before content that has none. None: the text ended."""
        channel, message, start = (self.marks[name] for name in (CHANNEL, MESSAGE, START))
        while True:
            begin = yield from reader.space()
            if begin is None:
                return None
            text = reader.rest[begin:]
            if (end := text.find(message)) >= 0:
                return reader.drop(begin + end + len(message))
            expected = (channel, start, "to=", *self._ends)
            may_go_on = any(text.startswith(mark) or mark.startswith(text) for mark in expected)
            if len(text) > MAX_HEADER or not may_go_on:
                begun = next((mark for mark in self._begins if text.startswith(mark)), "")
                reader.drop(begin + len(begun) if begun else 0)
                return ""
            if not (yield from reader.more()):
                if text[0] in self.marks.signs.values():  # a header that was cut off
                    reader.drop(len(reader.rest))
                return reader.finish()

    def _body(
        self, reader: AnswerReader, kind: str, watch: AnswerReader | None = None
    ) -> Steps[None]:
        reader.separate(kind)
        if kind == "reasoning":
            length = yield from reader.reason(self._ends, watch)
        else:
            length = yield from reader.until(self._ends, kind)
        if length is None:
            reader.give(kind, len(reader.rest))
        else:
            kept = next((mark for mark in self._begins if reader.rest[:length].endswith(mark)), "")
            reader.drop(length - len(kept))

    def _call(self, reader: AnswerReader, name: str) -> Steps[None]:
        begin = yield from reader.space()
        first = "" if begin is None else reader.rest[begin]
        if first not in ("{", "", *self._ends):
            return (yield from self._body(reader, "content"))
        reader.drop(begin or 0)
        reader.call(name)
        if first == "{":
            yield from reader.arguments()
        elif first or not reader.cut:
            reader.add("arguments", "{}")
        if not reader.full:
            yield from self._body(reader, "content")

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        """One call at most: <|call|> ends an answer."""
        lark = self.marks.lark
        bodies = [
            f"{literal(f'commentary to=functions.{f.name} ')} {lark(CONSTRAIN)} "
            f"{literal('json')} {lark(MESSAGE)}"
            f" {arguments_rule(f)}"
            for f in asked.functions
        ]
        call = rules.choice("function", bodies)
        last = call if asked.least else f'({call} | "final" {lark(MESSAGE)} {rules.any()})'
        return f"{lark(CHANNEL)} {self._aside(rules)}* {last}"

    def content(self, rules: GrammarRules, content: str) -> str:
        return (
            f'{self.marks.lark(CHANNEL)} {self._aside(rules)}* "final" '
            f"{self.marks.lark(MESSAGE)} {content}"
        )

    def _aside(self, rules: GrammarRules) -> str:
        """The rule for messages before an answer or a call, up to the next channel."""
        lark = self.marks.lark
        next_ = f"{lark(END)} {lark(START)} {literal('assistant')} {lark(CHANNEL)}"
        return rules.add(
            "aside", f'("analysis" | "commentary") {lark(MESSAGE)} {rules.any()} {next_}'
        )
