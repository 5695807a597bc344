"""The options that constrain the text of an answer: a JSON schema, a regular expression, a grammar,
choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longdraft.errors import InputError

if TYPE_CHECKING:
    from longdraft.constraints import Grammar


@dataclass(frozen=True)
class ConstraintOptions:
    """At most one of them is given."""

    json_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write JSON that is valid by the JSON Schema in this file (-: standard input).",
        ),
    ] = None
    json_object: Annotated[bool, typer.Option("--json-object", help="Write a JSON object.")] = False
    regex: Annotated[
        str | None,
        typer.Option(help="Write text that matches this regular expression from beginning to end."),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write text of the grammar in this file, in Lark's notation or GBNF.",
        ),
    ] = None
    choice: Annotated[
        list[str],
        typer.Option(help="Write this text; repeat the option to let the model choose one."),
    ] = field(default_factory=list)

    def check(self) -> None:
        """Raises InputError where several are given."""
        if len(names := self._given()) > 1:
            raise InputError(f"{names[0]} and {names[1]} are given: give one of them")

    def _given(self) -> list[str]:
        """The options that are given."""
        values = {
            "--json-schema": self.json_schema is not None,
            "--json-object": self.json_object,
            "--regex": self.regex is not None,
            "--grammar": self.grammar is not None,
            "--choice": bool(self.choice),
        }
        return [name for name, given in values.items() if given]

    def constraint(self, target: Any, tokenizer: Any) -> Grammar | None:
        """The constraint that was asked for, for this model; None: there is none. Raises
        InputError.
        """
        from longdraft.cli.prompts import read
        from longdraft.constraints import Constraints

        if not self._given():
            return None
        made = Constraints.of(target, tokenizer)
        if self.json_schema is not None:
            return made.json_schema(read(self.json_schema).text)
        if self.regex is not None:
            return made.regex(self.regex)
        if self.grammar is not None:
            return made.grammar(read(self.grammar).text)
        return made.choice(self.choice) if self.choice else made.json_object()
