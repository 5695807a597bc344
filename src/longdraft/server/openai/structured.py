"""Structured output: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from longdraft.constraints import (
    Constraints,
    Grammar,
    closed,
    json_rule,
    literal,
    object_rule,
    read_schema,
    relaxed_schema,
)
from longdraft.server.openai.conditions import Given, Rule, wrong
from longdraft.server.openai.request_fields import Strict, Text
from longdraft.server.openai.tools import is_shallow

MOST_CHOICES = 1000
LONGEST_CHOICE = 10_000
LONGEST_REGEX = 10_000
LONGEST_GRAMMAR = 1 << 16

Schema = Annotated[dict[str, Any], AfterValidator(is_shallow)]


@dataclass(frozen=True)
class Structure:
    """The structure of a text.

    kind: the kind of `value`; "json" is a schema. compact: JSON without spaces.
    """

    kind: Literal["json", "json_object", "regex", "choice", "grammar"]
    value: Any = None
    compact: bool = False

    def relaxed(self) -> tuple[Structure, list[str]]:
        """The structure without keywords that cannot be enforced, and the names of these keywords.

        Only keywords that leave JSON of the schema's shape are left out. Raises InputError.
        """
        if self.kind != "json":
            return self, []
        schema, lost = relaxed_schema(read_schema(self.value))
        return replace(self, value=schema), lost

    def made(self, constraints: Constraints) -> Grammar:
        """The grammar of the structure.

        Raises InputError.
        """
        if self.kind == "json":
            return constraints.json_schema(self.value, self.compact)
        if self.kind == "json_object":
            return constraints.json_object(self.compact)
        return getattr(constraints, self.kind)(self.value)

    def rule(self) -> str | None:
        """The structure as a part of a grammar in Lark's notation; None where it cannot be one.

        Raises InputError.
        """
        if self.kind == "json":
            return json_rule(read_schema(self.value), self.compact)
        if self.kind == "json_object":
            return object_rule(self.compact)
        if self.kind == "choice":
            return f"({' | '.join(map(literal, self.value))})"
        return None


class JsonSchema(Strict):
    """A schema with its name.

    name, description and strict change nothing: all of a schema is always enforced, and its objects
    are closed.
    """

    name: Annotated[Text, Field(max_length=64)]
    description: Text = ""
    schema_: Annotated[Schema, Field(alias="schema")] = Field(default_factory=dict)
    strict: bool = False


class ResponseFormat(Strict):
    rules = (
        Rule(
            "json_schema",
            {"type": "json_schema"},
            {"json_schema": Given},
            "is missing: this type needs it",
        ),
        Rule(
            "json_schema",
            {"json_schema": Given},
            {"type": "json_schema"},
            "belongs to the type 'json_schema'",
        ),
    )
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def structure(self) -> Structure | None:
        """The structure of the answer; None for plain text."""
        if self.json_schema is not None:
            return Structure("json", closed(self.json_schema.schema_))
        return Structure("json_object") if self.type == "json_object" else None


class StructuredOutputs(Strict):
    """A structure of one of vLLM's kinds.

    disable_any_whitespace: JSON without spaces too.
    """

    json_: Annotated[Schema | Text | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Annotated[Text, Field(min_length=1, max_length=LONGEST_REGEX)] | None = None
    choice: (
        Annotated[
            list[Annotated[Text, Field(min_length=1, max_length=LONGEST_CHOICE)]],
            Field(min_length=1, max_length=MOST_CHOICES),
        ]
        | None
    ) = None
    grammar: Annotated[Text, Field(min_length=1, max_length=LONGEST_GRAMMAR)] | None = None
    disable_any_whitespace: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = (
            self.json_ is not None,
            bool(self.json_object),
            bool(self.regex),
            bool(self.choice),
            bool(self.grammar),
        )
        if sum(given) != 1:
            raise ValueError("give one of json, json_object, regex, choice and grammar")
        return self

    @property
    def structure(self) -> Structure:
        if self.regex is not None:
            return Structure("regex", self.regex)
        if self.choice is not None:
            return Structure("choice", self.choice)
        if self.grammar is not None:
            return Structure("grammar", self.grammar)
        if self.json_ is None:
            return Structure("json_object", compact=self.disable_any_whitespace)
        return Structure("json", self.json_, self.disable_any_whitespace)


class Structured(Strict):
    """The fields of a request for structured output; only one of them may ask for a structure."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def _asks_once(self) -> Structured:
        made = None if self.response_format is None else self.response_format.structure
        if made is not None and self.structured_outputs is not None:
            raise wrong(
                "structured_outputs", "response_format asks for a structure too: give one of them"
            )
        return self

    @property
    def structure_field(self) -> str:
        """The field that asks for a structure."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def structure(self) -> Structure | None:
        """The structure of the answer; None for any text."""
        if self.structured_outputs is not None:
            return self.structured_outputs.structure
        return None if self.response_format is None else self.response_format.structure
