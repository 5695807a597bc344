"""The options of a function, which are its parameters that have a default.

They are checked by pydantic against their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo

from longdraft.errors import InputError

# of a draft tree: more could not pay with any model
MAX_DEPTH = 512
MAX_NODES = 1024

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)]
Nodes = Annotated[int, Field(ge=1, le=MAX_NODES)]


def _widths(value: Any) -> tuple[int, ...]:
    """Numbers, or text like "4,16,16", as a tuple."""
    numbers = value.split(",") if isinstance(value, str) else value
    widths = tuple(int(number) for number in numbers)
    if not widths or min(widths) < 1 or sum(widths) > MAX_NODES:
        raise ValueError
    return widths


Widths = Annotated[
    tuple[int, ...],
    BeforeValidator(_widths),
    PlainSerializer(
        lambda widths: widths if isinstance(widths, str) else ",".join(map(str, widths))
    ),
    Field(
        description="nodes per depth, each 1 or more and together "
        f"{MAX_NODES} or less, like 4,16,16"
    ),
]


@cache
def declared(function: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model with one field per option of the function."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    fields: dict[str, Any] = {
        p.name: (hints[p.name], p.default) for p in parameters if p.default is not p.empty
    }
    return create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields
    )


def read(
    owner: str, model: type[BaseModel], given: Mapping[str, Any], text: bool = False
) -> BaseModel:
    """Every option of `model`, at its default where it is not given; text: the values are words.

    Raises InputError.
    """
    known = model.model_fields
    for key in given.keys() - known.keys():
        raise InputError(
            f"{owner} has no option {key!r}: its options are {', '.join(known) or 'none'}"
        )
    try:
        return model.model_validate(given, strict=not text)
    except ValidationError as failure:
        key = str(failure.errors()[0]["loc"][0])
        value = given[key] if text else repr(given[key])
        raise InputError(f"option {key} is {value}: give {allowed(known[key])}") from None


def allowed(field: FieldInfo) -> str:
    """The values that an option takes, in words."""
    if field.description:
        return field.description
    if get_origin(field.annotation) is Literal:
        return " or ".join(get_args(field.annotation))
    kind = "a whole number" if field.annotation is int else "a number"
    low = next((x for x in field.metadata if isinstance(x, (Ge, Gt))), None)
    high = next((x.le for x in field.metadata if isinstance(x, Le)), None)
    if isinstance(low, Gt):
        return f"{kind} above {low.gt}" + (f", {high} at most" if high is not None else "")
    if low is None:
        return kind
    return f"{kind} of {low.ge} or more" if high is None else f"{kind} from {low.ge} to {high}"


def pairs(words: list[str]) -> dict[str, str]:
    """`key=value` words as a dictionary."""
    return dict(pair(word) for word in words)


def pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals or not value:
        raise InputError(f"option {word!r} has no value: give KEY=VALUE, like gamma=5")
    return key, value
