"""The options that a chat request passes to the model's template, beside messages and tools."""

from __future__ import annotations

import re
from dataclasses import replace
from json import dumps
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from longdraft.models.chat import RESERVED, Turn
from longdraft.server.http.entry import current
from longdraft.server.openai.request_fields import FEW, MOST_FIELDS
from longdraft.server.openai.tools import is_shallow

MAX_VARIABLES = 1 << 14  # characters of all variables as JSON


def _small(variables: dict[str, Any]) -> dict[str, Any]:
    if (size := len(dumps(is_shallow(variables)))) > MAX_VARIABLES:
        raise ValueError(f"{size} characters of JSON are too many: give at most {MAX_VARIABLES}")
    return variables


def _free(name: str) -> str:
    if name in RESERVED:
        raise ValueError(
            "templates have another variable of this name: leave it out, or use the field "
            "of the request"
        )
    return name


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
VARIABLE = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
SWITCH = "enable_thinking"
NAMES: dict[str, Any] = {"pattern": VARIABLE, "not": {"enum": sorted(RESERVED)}}
Variables = Annotated[
    dict[Annotated[str, Field(pattern=VARIABLE), AfterValidator(_free)], Any],
    Field(max_length=MOST_FIELDS),
    AfterValidator(_small),
    FEW,
    Field(json_schema_extra={"propertyNames": NAMES}),
]


def told(turn: Turn, template: str) -> Turn:
    """The turn without variables that the template does not read, which are reported.

    No effort at all turns the reasoning off where the template has only a switch for it.
    """
    if current().strict:
        return turn
    variables = dict[str, Any]()
    for name, value in turn.variables.items():
        if reads(template, name):
            variables[name] = value
        elif name == "reasoning_effort" and reads(template, SWITCH):
            variables.setdefault(SWITCH, value != "none")
        else:
            is_field = name == "reasoning_effort"
            current().ignore(name if is_field else f"chat_template_kwargs.{name}")
    return replace(turn, variables=variables)


def reads(template: str, name: str) -> bool:
    """Tells whether a template reads a variable."""
    return re.search(rf"\b{name}\b", template) is not None


def turn(begins: bool | None, continues: bool, variables: dict[str, Any]) -> Turn:
    """The options as the template reads them.

    begins: add_generation_prompt; not given: unless the last message is continued.
    """
    return Turn(not continues if begins is None else begins, continues, variables)
