"""Tells from a chat template and a vocabulary how a model writes calls and reasoning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longdraft.server.calls.answer_reader import AnswerReader, Steps
from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls
from longdraft.server.calls.coder import Coder
from longdraft.server.calls.described import nearest_format
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.format_marks import Marks
from longdraft.server.calls.harmony import Harmony
from longdraft.server.calls.hermes import Hermes
from longdraft.server.calls.llama import TAG, Llama
from longdraft.server.calls.mistral_calls import Mistral
from longdraft.server.calls.ways import Calls, Way
from longdraft.server.openai.tools import Function

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
# names under which templates read earlier reasoning
FIELDS = (
    "reasoning_content",
    "reasoning",
    "thinking",
)
TAIL = 8  # tokens of a prompt in which a template may have begun the reasoning


def format_of(template: str) -> type[CallFormat] | None:
    """The format in which a template writes calls; None for one that is not known here."""
    if "<|channel|>" in template and "<|message|>" in template:
        return Harmony
    if "[TOOL_CALLS]" in template:
        return Mistral
    if "<tool_call>" in template:
        if "<arg_key>" in template:
            return None
        return Coder if "<function=" in template else Hermes
    if TAG in template or re.search(r'\{"name": [\w ]+, "parameters": ', template):
        return Llama
    return None


class Dialect:
    """Chosen by a template's text and a tokenizer's special tokens, never by a model's name.

    described: the tools are described in a system message, in the format that the vocabulary
    suggests, because the template does not support tools.
    """

    def __init__(self, tokenizer: Any, template: str, described: bool = False):
        self.tokenizer = tokenizer
        self.template = template
        added = getattr(tokenizer, "get_added_vocab", dict)()
        kind = nearest_format(added) if described else format_of(template)
        self.kind = kind
        pairs = [] if kind is Harmony else THOUGHTS
        pair = next((p for p in pairs if p[1] in template or p[1] in added), None)
        self.marks = Marks(tokenizer, (*(() if kind is None else kind.names), *(pair or ())))
        self.format = None if kind is None else kind(self.marks, template)
        self.thoughts = pair
        ends = () if kind is None else kind.ends
        self.ends = tuple(sorted(Marks(tokenizer, ends).ids.values()))
        named = (name for name in FIELDS if re.search(rf"""[.'"]{name}\b""", template))
        self.field = next(named, None)  # the template's name for earlier reasoning

    def call_id(self) -> str:
        return (CallFormat if self.format is None else self.format).call_id()

    def opened(self, prompt: Sequence[int]) -> bool:
        """Tells whether a prompt ends in the beginning of reasoning."""
        if self.thoughts is None:
            return False
        tail = self.tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False)
        return tail.rstrip().endswith(self.thoughts[0])

    def reader(
        self, schemas: dict[str, Any], opened: bool, most: int | None, bound: bool = False
    ) -> AnswerReader:
        """A reader for one answer.

        bound: a grammar binds the answer, so its calls are as the template writes them.
        """
        return DialectReader(self, schemas, opened, most, bound)

    def grammar(
        self,
        functions: Sequence[Function],
        least: int,
        many: bool,
        opened: bool,
        content: str | None = None,
    ) -> str:
        """Lark for an answer with calls of these functions, whose arguments follow their schemas.

        least, many: see RequiredCalls. content: the rule for the text of an answer without calls,
        if that is not free.
        """
        rules = GrammarRules()
        thought = self._thought(rules, opened)
        answer = self._answer(rules, RequiredCalls(functions, least, many), content)
        return rules.text(f"{thought} ({answer})" if thought else answer)

    def _answer(self, rules: GrammarRules, asked: RequiredCalls, content: str | None) -> str:
        if content is None or asked.least:
            assert self.format is not None
            return self.format.grammar(rules, asked)
        text = content if self.format is None else self.format.content(rules, content)
        if not asked.functions or self.format is None:
            return text
        return f"({self.format.grammar(rules, replace(asked, least=1))}) | {text}"

    @property
    def writes(self) -> bool:
        """Tells whether an answer has more than its text: reasoning, or channels."""
        return self.thoughts is not None or isinstance(self.format, Harmony)

    def _thought(self, rules: GrammarRules, opened: bool) -> str:
        """The rule for reasoning before an answer, or "" for a model that does not write any."""
        if self.thoughts is None:
            return ""
        first, last = self.thoughts
        rules.add("SPACE", r"/[ \n]*/")
        body = f"{rules.upto('thought', self.marks, last)} SPACE"
        return body if opened else f"({self.marks.lark(first)} {body})?"


class DialectReader(Calls):
    """Reads reasoning, if there is any, and then content and calls.

    Without functions nothing is a call.
    """

    def __init__(
        self, dialect: Dialect, schemas: dict[str, Any], opened: bool, most: int | None, bound: bool
    ):
        self.dialect = dialect
        self.opened = opened
        ways: tuple[Way, ...] = ()
        begins = False
        if dialect.format is not None:
            ways = dialect.format.ways
            begins = dialect.format.begins
        super().__init__(schemas, ways, most, bound, begins)

    def steps(self) -> Steps[None]:
        dialect = self.dialect
        if dialect.thoughts is not None:
            first, last = dialect.thoughts
            yield from self.think(
                (dialect.marks[first], dialect.marks[last]), self.opened, self._watch()
            )
        if isinstance(dialect.format, Harmony):
            yield from dialect.format.read(self, self._watch)
        elif self.schemas and not self.full:
            yield from super().steps()
        self.done = self.full
        if not self.done:
            yield from AnswerReader.steps(self)

    def _watch(self) -> AnswerReader | None:
        """Reads the calls in reasoning, unless a grammar makes the model close it."""
        if self.bound or not self.schemas:
            return None
        return Calls(self.schemas, () if self.dialect.format is None else self.dialect.format.ways)
