"""The interface of a format of calls."""

from __future__ import annotations

from secrets import token_hex
from typing import ClassVar

from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls
from longdraft.server.calls.format_marks import Marks
from longdraft.server.calls.ways import Way


class CallFormat:
    """A format of calls: a text that its grammar allows is read as calls of the offered functions.

    names: its marks. ends: tokens that end an answer even where the model's configuration does not
    say so. begins: its calls need no mark at the beginning of an answer.
    """

    names: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ()
    begins: ClassVar[bool] = False

    def __init__(self, marks: Marks, template: str):
        self.marks = marks

    @staticmethod
    def call_id() -> str:
        """A new call's id."""
        return f"call_{token_hex(12)}"

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways in which its calls may begin."""
        return ()

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        """The rule for an answer after its reasoning."""
        raise NotImplementedError

    def content(self, rules: GrammarRules, content: str) -> str:
        """The rule for an answer without calls whose text is as the rule `content` says."""
        return content
