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

__all__ = ["Constraints", "Grammar", "closed", "json_rule", "literal", "object_rule", "read_schema", "relaxed_schema"]
