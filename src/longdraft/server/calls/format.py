"""What every format of calls has."""

from __future__ import annotations

from secrets import token_hex
from typing import ClassVar

from longdraft.server.calls.grammar import Asked, Rules
from longdraft.server.calls.marks import Marks
from longdraft.server.calls.reader import Reader, Steps


class Format:
    """A text that its grammar allows is one that it reads as calls of the functions asked for.

    names: its marks. ends: tokens that end an answer even where the model's configuration does not say so.
    """

    names: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, marks: Marks, template: str):
        self.marks = marks

    @staticmethod
    def call_id() -> str:
        """A new call's id."""
        return f"call_{token_hex(12)}"

    def read(self, reader: Reader) -> Steps[None]:
        """Read an answer after its reasoning."""
        raise NotImplementedError

    def grammar(self, rules: Rules, asked: Asked) -> str:
        """The rule for an answer after its reasoning."""
        raise NotImplementedError

    def content(self, rules: Rules, content: str) -> str:
        """The rule for an answer without calls whose text is as the rule `content` says."""
        return content
