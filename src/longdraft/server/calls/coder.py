"""Calls as tags: <tool_call><function=NAME><parameter=P>value</parameter></function></tool_call>.

Qwen 3.5 and Qwen Coder write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longdraft.constraints import Schemas, as_any_of, json_rule, literal
from longdraft.errors import InputError
from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls, schema_of
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.hermes import CLOSE, OPEN, tagged
from longdraft.server.calls.tags import FUNCTION_END, VALUE_END
from longdraft.server.calls.texts import Texts, any_of
from longdraft.server.calls.ways import Way, read_marked
from longdraft.server.openai.tools import Function

LINE = literal("\n")
END = literal(f"\n{VALUE_END}\n")
NO_END = rf"~/(.|\n)*{VALUE_END.replace('/', chr(92) + '/')}(.|\n)*/"
LEFT_OUT = {
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "maxProperties",
}
# of a function's parameters, all together
LEFT_OUT |= {
    "propertyNames",
    "unevaluatedProperties",
    "const",
    "enum",
}
OTHER = r"/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"  # a parameter that the schema does not name


class Coder(CallFormat):
    """A value is text where its parameter is a string, and JSON elsewhere."""

    names = (OPEN, CLOSE)

    @property
    def ways(self) -> tuple[Way, ...]:
        return (Way(self.marks[OPEN], self.marks[CLOSE], read_marked),)

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        rules.lazy("value", VALUE_END)
        call = rules.choice("function", [self._function(rules, f) for f in asked.functions])
        rest = rules.add("calls", f"{LINE} {call} {LINE} {self.marks.lark(CLOSE)}")
        return tagged(rules, asked, self.marks, rest)

    def _function(self, rules: GrammarRules, function: Function) -> str:
        schemas = Schemas(as_any_of(schema_of(function)))
        texts = Texts(schemas, lenient=not function.strict)
        root = schemas.root
        about = f"tools: function {function.name!r}"
        described = schemas.parts(root)
        left_out = _left_out(described)
        if function.strict and left_out:
            raise InputError(
                f"{about} is strict, and {left_out!r} of its parameters cannot be enforced here"
            )
        needed = schemas.required(root)
        parts = [literal(f"<function={function.name}>\n")]
        for key in dict.fromkeys([*schemas.names(root), *needed]):
            if set(key) & set("<>\"'\n") or key != key.strip():
                raise InputError(
                    f"{about}: this model's format of calls cannot have a parameter {key[:80]!r}"
                )
            try:
                value = self._value(rules, texts, schemas.property(root, key))
            except InputError as error:
                raise InputError(f"{about}: parameter {key[:80]!r}: {error}") from None
            part = literal(f"<parameter={key}>\n") + f" {value}"
            parts.append(part if key in needed else f"({part})?")
        if len(parts) == 1 and any(
            part.get("additionalProperties") not in (None, False) for part in described
        ):
            value = self._value(rules, texts, schemas.property(root, ""))
            parts.append(f"({literal('<parameter=')} {OTHER} {literal(f'>{chr(10)}')} {value})*")
        return " ".join([*parts, literal(FUNCTION_END)])

    def _value(self, rules: GrammarRules, texts: Texts, about: Any) -> str:
        """The rule for a value and its end."""
        schemas = texts.schemas
        if schemas.types(about) != {"string"}:
            about = about if isinstance(about, dict) else {}
            shared = {k: schemas.root[k] for k in ("$defs", "definitions") if k in schemas.root}
            return f"{json_rule(about | shared, lenient=texts.lenient)} {END}"
        text = texts.rule(about)
        if text is None:
            return f"value {LINE}"
        if (choices := texts.choices(about)) and text == any_of(choices):
            return f"{text} {END}"
        return rules.add(f"text_{len(rules.lines)}[lazy]", f"({text} & {NO_END}) {END}")


def _left_out(parts: Iterable[dict[str, Any]]) -> str | None:
    """The first keyword of a schema's parts that cannot be enforced."""
    for part in parts:
        for key in part:
            if key in LEFT_OUT:
                return key
    return None
