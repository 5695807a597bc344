"""Constraints on generated text: JSON schemas, regular expressions, choices and grammars."""

from __future__ import annotations

from longdraft.constraints.closed import closed
from longdraft.constraints.constraints import (
    Constraints,
    json_rule,
    literal,
    object_rule,
    read_schema,
    relaxed_schema,
)
from longdraft.constraints.grammar import Grammar
from longdraft.constraints.one_of import as_any_of
from longdraft.constraints.types import ANY, Schemas, type_of, ways_of

__all__ = [
    "ANY",
    "Constraints",
    "Grammar",
    "Schemas",
    "as_any_of",
    "closed",
    "json_rule",
    "literal",
    "object_rule",
    "read_schema",
    "relaxed_schema",
    "type_of",
    "ways_of",
]
