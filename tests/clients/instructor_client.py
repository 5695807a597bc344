"""Instructor: pydantic models by each of its modes for OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import instructor
import openai
from common import API, KEY, MODEL, check, equal, refused
from instructor import Mode
from instructor.core import IncompleteOutputException, InstructorRetryException
from shapes import REAL, SYSTEM, TASK, WEATHER, City, Order, Place, Sum, Trip, is_order, only_real

HERE: dict[str, Any] = {"base_url": API, "api_key": KEY, "max_retries": 0}
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": MESSAGES,
    "max_tokens": 400,
    "seed": 3,
    "max_retries": 1,
}
ENFORCED = (Mode.TOOLS, Mode.JSON_SCHEMA, Mode.TOOLS_STRICT, Mode.RESPONSES_TOOLS)
PARTIAL = (Mode.TOOLS, Mode.JSON_SCHEMA)
PARALLEL: dict[str, Any] = {"response_model": Iterable[City | Sum], "max_tokens": 300}
PARALLEL["messages"] = [{"role": "user", "content": WEATHER}]


def client(mode: Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(**HERE), mode=mode)


def asynchronous(mode: Mode) -> Any:
    return instructor.from_openai(openai.AsyncOpenAI(**HERE), mode=mode)


def fields(mode: Mode, **more: Any) -> dict[str, Any]:
    """The Responses API has no seed."""
    return {
        k: v
        for k, v in (ASK | {"response_model": Order} | more).items()
        if "RESP" not in mode.name or k != "seed"
    }


@check
def order():
    for mode in ENFORCED:
        is_order(client(mode).chat.completions.create(**fields(mode)))


@check
def asynchronously():
    async def orders():
        calls = (asynchronous(mode).chat.completions.create(**fields(mode)) for mode in ENFORCED)
        return await asyncio.gather(*calls)

    for found in asyncio.run(orders()):
        is_order(found)


@check
def partial():
    """Without enums and a discriminated union, of which this client makes no partial models."""
    for mode in PARTIAL:
        parts = list(
            client(mode).chat.completions.create_partial(**fields(mode, response_model=Trip))
        )
        assert len(parts) > 3 and parts[0].express is None, parts
        assert isinstance(Trip(**parts[-1].model_dump()).place, Place)


@check
def partial_asynchronously():
    async def parts(mode: Mode):
        asked = asynchronous(mode).chat.completions.create_partial(
            **fields(mode, response_model=Trip)
        )
        return [part async for part in asked]

    for mode in PARTIAL:
        assert isinstance(Trip(**asyncio.run(parts(mode))[-1].model_dump()).place, Place)


@check
def iterable():
    """A list of objects, given out one by one."""
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        for found in client(mode).chat.completions.create_iterable(
            **fields(mode, response_model=City)
        ):
            assert isinstance(found, City)
            break


@check
def parallel():
    """Several calls in an answer, which the model decides on: tool_choice is auto."""
    only_real()
    found = client(Mode.PARALLEL_TOOLS).chat.completions.create(
        **fields(Mode.PARALLEL_TOOLS, **PARALLEL)
    )
    equal([type(call) for call in found or []], [City, Sum])


@check
def json():
    """The schema is in the prompt alone: an object comes, and whether it fits is up to the
    model.
    """
    ask = fields(Mode.JSON)
    if REAL:
        is_order(client(Mode.JSON).chat.completions.create(**ask))
    else:
        refused(
            lambda: client(Mode.JSON).chat.completions.create(**ask),
            IncompleteOutputException,
            "incomplete",
        )


@check
def bad_input():
    ask = fields(Mode.TOOLS, temperature=99_999)
    refused(
        lambda: client(Mode.TOOLS).chat.completions.create(**ask),
        InstructorRetryException,
        "temperature",
    )
