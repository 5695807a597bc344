"""Schemas and functions for the scripts. Every text in them is bounded: the bundled model would not
end a free one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from common import GIVEN, Skip
from pydantic import BaseModel, Field

REAL = GIVEN["real"]  # a model that may know what tools are for
SYSTEM = "You are a helpful assistant. Use the functions that you are given."
TASK = "A red round stamp and a blue square one, for Ada Lovelace in Paris."
WEATHER = "What is the weather in Paris? And how much is 17 plus 25?"


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """A town."""

    name: str = Field(max_length=12, description="its name")
    kind: Literal["city", "village"]


class Circle(BaseModel):
    shape: Literal["circle"]
    radius: int = Field(ge=1, le=9)


class Square(BaseModel):
    shape: Literal["square"]
    side: int = Field(ge=1, le=9)


class Stamp(BaseModel):
    color: Color
    form: Annotated[Circle | Square, Field(discriminator="shape")]


class Order(BaseModel):
    """An order of stamps."""

    customer: str = Field(max_length=16)
    place: Place
    stamps: list[Stamp] = Field(min_length=1, max_length=2)
    note: str | None = Field(max_length=8)
    express: bool


class Trip(BaseModel):
    """A trip to a town."""

    customer: str = Field(max_length=16)
    place: Place
    days: list[Literal["Monday", "Friday"]] = Field(min_length=1, max_length=3)
    note: str | None = Field(max_length=8)
    express: bool


class City(BaseModel):
    """What to ask the weather of."""

    city: Literal["Paris", "Rome", "Oslo"]


class Sum(BaseModel):
    """Two numbers to add."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}, 21 degrees."


def add(a: Annotated[int, Field(ge=0, le=99)], b: Annotated[int, Field(ge=0, le=99)]) -> str:
    """Add two numbers."""
    return f"{a} + {b} = {a + b}"


RUN = {"weather": (weather, City), "add": (add, Sum)}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": call.__doc__,
            "parameters": model.model_json_schema(),
        },
    }
    for name, (call, model) in RUN.items()
]


def answer(name: str, arguments: dict[str, Any]) -> str:
    """What a called function says."""
    call, model = RUN[name]
    return call(**dict(model(**arguments)))


def is_order(found: Any) -> None:
    """Pydantic has checked its fields; this looks at how deep they are."""
    assert isinstance(found, Order), found
    assert found.stamps and all(
        re.fullmatch("circle|square", stamp.form.shape) for stamp in found.stamps
    )
    assert isinstance(found.stamps[0].color, Color) and isinstance(found.place, Place)


def only_real() -> None:
    """Raises Skip where the model calls nothing that no grammar asks for."""
    if not REAL:
        raise Skip("the bundled model calls functions only where a grammar asks for it")
