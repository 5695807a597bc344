"""Constraints on generated text: JSON schemas, regular expressions, choices and grammars."""

from __future__ import annotations

from longdraft.constraints.constraints import Constraints, json_rule, literal, read_schema
from longdraft.constraints.grammar import Grammar

__all__ = ["Constraints", "Grammar", "json_rule", "literal", "read_schema"]
