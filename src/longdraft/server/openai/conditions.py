"""Rules between the fields of a request, written once for the server and for its document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticCustomError


class Given:
    """A condition that the field is given, whatever its value."""


class NotGiven:
    """A condition that the field is not given, or null."""


# by field: Given, NotGiven, its value, or a tuple of values; a default may be left out
Condition = Mapping[str, Any]


def wrong(field: str, why: str) -> PydanticCustomError:
    """The error with which a model's validator reports one of its fields."""
    return PydanticCustomError("wrong", "{why}", {"why": why, "field": field})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rule:
    """A rule between fields: if every field is as `given` says, every one must be as `then` says.

    why: the message, about `field`.
    """

    field: str
    given: Condition
    then: Condition
    why: str

    def check(self, body: BaseModel) -> None:
        if _holds(body, self.given) and not _holds(body, self.then):
            raise wrong(self.field, self.why)

    def schema(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The rule in JSON Schema.

        fields: those of the model.
        """
        return {"if": _schema(fields, self.given), "then": _schema(fields, self.then)}


def _values(wanted: Any) -> tuple[Any, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def _holds(body: BaseModel, condition: Condition) -> bool:
    return all(_matches(body, name, wanted) for name, wanted in condition.items())


def _matches(body: BaseModel, name: str, wanted: Any) -> bool:
    if wanted in (Given, NotGiven):
        return (name in body.model_fields_set) == (wanted is Given)
    return getattr(body, name) in _values(wanted)


def _schema(fields: Mapping[str, Any], condition: Condition) -> dict[str, Any]:
    properties = {}
    required = []
    for field, wanted in condition.items():
        name = fields[field].alias or field
        if wanted is Given:
            properties[name] = {"not": {"type": "null"}}
            required.append(name)
        elif wanted is NotGiven:
            properties[name] = {"type": "null"}
        elif fields[field].default in _values(wanted):
            properties[name] = {
                "enum": [*(value for value in _values(wanted) if value is not None), None]
            }
        else:
            properties[name] = {"enum": list(_values(wanted))}
            required.append(name)
    return {"properties": properties} | ({"required": required} if required else {})
