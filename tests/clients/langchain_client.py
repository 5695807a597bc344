"""langchain-openai: its chat model and its text model."""

from __future__ import annotations

from typing import Any

import openai
from common import (
    API,
    GIVEN,
    KEY,
    LONG,
    MODEL,
    SAMPLING,
    TEXT,
    check,
    close,
    equal,
    leaving,
    refused,
)
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from shapes import REAL, SYSTEM, TASK, TOOLS, WEATHER, City, Order, Sum, answer, is_order, only_real

HERE: dict[str, Any] = {"base_url": API, "api_key": KEY, "model": MODEL, "max_retries": 0}


def chat(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(**HERE | SAMPLING | fields)


@check
def plain():
    found = chat().invoke(TEXT)
    equal(found.content, GIVEN["chat"])
    equal(found.usage_metadata["output_tokens"], SAMPLING["max_tokens"])


@check
def conversation():
    turns = [SystemMessage("Be brief."), HumanMessage("hi"), AIMessage("hello"), HumanMessage(TEXT)]
    assert chat().invoke(turns).content


@check
def stream():
    equal("".join(part.content for part in chat().stream(TEXT)), GIVEN["chat"])
    parts = list(chat(stream_usage=True).stream(TEXT))
    equal(
        [p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata],
        [SAMPLING["max_tokens"]],
    )


@check
def stop():
    equal(chat().invoke(TEXT, stop=[GIVEN["stop"]]).content, GIVEN["stopped"])
    equal("".join(part.content for part in chat(stop=GIVEN["stop"]).stream(TEXT)), GIVEN["stopped"])


@check
def seed():
    equal(chat().invoke(TEXT).content, chat().invoke(TEXT).content)
    assert chat(seed=4).invoke(TEXT).content != GIVEN["chat"]


@check
def logprobs():
    found = (
        chat(logprobs=True, top_logprobs=2).invoke(TEXT).response_metadata["logprobs"]["content"]
    )
    close([x["logprob"] for x in found], GIVEN["logprobs"])


@check
def n():
    [found] = chat(n=3).generate([[HumanMessage(TEXT)]]).generations
    equal([c.text for c in found], GIVEN["choices"])


@check
def batch():
    equal([m.content for m in chat().batch([TEXT] * 4)], [GIVEN["chat"]] * 4)


@check
def completion():
    equal(OpenAI(**HERE | SAMPLING).invoke(TEXT), GIVEN["completion"])
    equal("".join(OpenAI(**HERE | SAMPLING).stream(TEXT)), GIVEN["completion"])


@check
def prompts():
    """The text model sends a batch as one request with several prompts."""
    equal(OpenAI(**HERE | SAMPLING).batch([TEXT] * 4), [GIVEN["completion"]] * 4)


@check
def response():
    equal(
        chat(use_responses_api=True, seed=None, extra_body={"seed": 3}).invoke(TEXT).text,
        GIVEN["chat"],
    )


@check
def structured():
    """The last method has the schema in no field: what comes is an object, and whether it fits is
    up to the model.
    """
    for method in ("json_schema", "function_calling"):
        for more in ({}, {"strict": True}):
            asked = chat(max_tokens=400).with_structured_output(Order, method=method, **more)
            is_order(asked.invoke(TASK))
            is_order(list(asked.stream(TASK))[-1])
    asked = chat(max_tokens=400).with_structured_output(Order, method="json_mode", include_raw=True)
    if REAL:
        is_order(
            asked.invoke(f"{TASK} Answer with JSON of this schema: {Order.model_json_schema()}")[
                "parsed"
            ]
        )
    else:
        refused(
            lambda: asked.invoke(f"{TASK} Answer with JSON."),
            openai.LengthFinishReasonError,
            "length",
        )


@check
def structured_as_dictionaries():
    for method in ("json_schema", "function_calling"):
        asked = chat(max_tokens=400).with_structured_output(
            Order.model_json_schema(), method=method
        )
        is_order(Order(**asked.invoke(TASK)))


@check
def structured_responses():
    asked = chat(max_tokens=400, use_responses_api=True, seed=None).with_structured_output(Order)
    is_order(asked.invoke(TASK))


@check
def tool_choice():
    one = {"parallel_tool_calls": False}
    for choice in ("any", "required", True):
        tools = TOOLS[:1] if choice is True else TOOLS
        [call] = (
            chat(max_tokens=200)
            .bind_tools(tools, tool_choice=choice, **one)
            .invoke(WEATHER)
            .tool_calls
        )
        assert answer(call["name"], call["args"])
    [call] = (
        chat(max_tokens=200).bind_tools([City, Sum], tool_choice="Sum").invoke(WEATHER).tool_calls
    )
    assert Sum(**call["args"])
    parts = list(chat(max_tokens=200).bind_tools([City, Sum], tool_choice="City").stream(WEATHER))
    whole = sum(parts[1:], parts[0])
    assert len(parts) > 2 and City(**whole.tool_calls[0]["args"])
    assert not chat().bind_tools(TOOLS, tool_choice="none").invoke(WEATHER).tool_calls


@check
def loop():
    """Calls that are asked for, one by one, their results, and an answer."""
    turns: list[Any] = [SystemMessage(SYSTEM), HumanMessage(WEATHER)]
    for name in ("weather", "add"):
        turns.append(chat(max_tokens=200).bind_tools(TOOLS, tool_choice=name).invoke(turns))
        turns += [
            ToolMessage(answer(c["name"], c["args"]), tool_call_id=c["id"])
            for c in turns[-1].tool_calls
        ]
    found = chat(max_tokens=40).bind_tools(TOOLS, tool_choice="none").invoke(turns)
    assert found.content and not found.tool_calls


@check
def agent():
    """The model decides on each step."""
    only_real()
    asked = chat(max_tokens=200).bind_tools(TOOLS)
    turns = [SystemMessage(SYSTEM), HumanMessage(WEATHER)]
    called = []
    for _ in range(4):
        turns.append(asked.invoke(turns))
        if not turns[-1].tool_calls:
            break
        called += [call["name"] for call in turns[-1].tool_calls]
        turns += [
            ToolMessage(answer(c["name"], c["args"]), tool_call_id=c["id"])
            for c in turns[-1].tool_calls
        ]
    equal(sorted(called), ["add", "weather"])
    assert "42" in turns[-1].content and "21" in turns[-1].content, turns[-1].content


@check
def bad_input():
    refused(lambda: chat(temperature=99_999).invoke(TEXT), openai.BadRequestError, "temperature")
    refused(
        lambda: list(chat(extra_body={"nothing": 1}).stream(TEXT)),
        openai.BadRequestError,
        "nothing",
    )
    refused(lambda: chat(model="other").invoke(TEXT), openai.NotFoundError, "other")
    refused(lambda: chat(api_key="wrong").invoke(TEXT), openai.AuthenticationError, "API key")


@check
def disconnect():
    def begin():
        stream = chat(max_tokens=LONG, extra_body={"ignore_eos": True}).stream(TEXT)
        for _, _ in zip(range(5), stream, strict=False):
            pass
        return stream.close

    leaving(begin)
    equal(chat().invoke(TEXT).content, GIVEN["chat"])
