"""Pydantic AI: agents with tools, and structured output by each of its ways."""

from __future__ import annotations

import asyncio
from typing import Any

from common import API, GIVEN, KEY, MODEL, SAMPLING, TEXT, check, equal, refused
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from shapes import REAL, SYSTEM, TASK, WEATHER, Order, add, is_order, only_real, weather

provider = OpenAIProvider(base_url=API, api_key=KEY)
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)
MANY = ModelSettings(max_tokens=400, seed=3, parallel_tool_calls=False)
ONCE: dict[str, Any] = {"instructions": SYSTEM, "model_settings": MANY, "retries": 0}


def agent(output: Any = str, model: Any = chat, **more: Any) -> Agent[None, Any]:
    return Agent(model, output_type=output, **ONCE | more)


def used(messages: list[ModelMessage], kind: type) -> list[Any]:
    """Calls or results in a conversation."""
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


@check
def plain():
    asked = Agent(chat, model_settings=ModelSettings(**SAMPLING))
    equal(asked.run_sync(TEXT).output, GIVEN["chat"])


@check
def stream():
    async def text() -> str:
        async with Agent(chat, model_settings=ModelSettings(**SAMPLING)).run_stream(TEXT) as found:
            return "".join([part async for part in found.stream_text(delta=True)])

    equal(asyncio.run(text()), GIVEN["chat"])


@check
def output_by_tool():
    is_order(agent(ToolOutput(Order)).run_sync(TASK).output)
    is_order(agent(Order, responses, model_settings=MANY | {"seed": None}).run_sync(TASK).output)


@check
def output_by_schema():
    is_order(agent(NativeOutput(Order)).run_sync(TASK).output)


@check
def output_by_prompt():
    """Only that it is an object is enforced here; the schema is in the prompt."""
    asked = agent(PromptedOutput(Order))
    if REAL:
        is_order(asked.run_sync(TASK).output)
    else:
        refused(lambda: asked.run_sync(TASK), UnexpectedModelBehavior, "output")


@check
def streamed_output():
    async def parts(output: Any) -> list[Any]:
        async with agent(output).run_stream(TASK) as found:
            return [part async for part in found.stream_output(debounce_by=None)]

    for output in (ToolOutput(Order), NativeOutput(Order)):
        is_order(asyncio.run(parts(output))[-1])


@check
def loop():
    """Two tools and an output: calls, their results, and an answer of the schema."""
    found = agent(ToolOutput(Order), tools=[weather, add]).run_sync(WEATHER)
    is_order(found.output)


@check
def loop_of_text():
    """The model decides whether to call, and which of the two."""
    only_real()
    found = agent(tools=[weather, add]).run_sync(WEATHER)
    calls = [call.tool_name for call in used(found.all_messages(), ToolCallPart)]
    equal((sorted(calls), len(used(found.all_messages(), ToolReturnPart))), (["add", "weather"], 2))
    assert "42" in found.output and "21" in found.output, found.output


@check
def bad_input():
    asked = Agent(chat, model_settings=ModelSettings(temperature=99_999))
    refused(lambda: asked.run_sync(TEXT), ModelHTTPError, "temperature")
