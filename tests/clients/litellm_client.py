"""LiteLLM: its OpenAI-compatible chat and text providers."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for a table of prices

import litellm
from common import (
    API,
    CHAT,
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
from shapes import RUN, SYSTEM, TASK, TOOLS, WEATHER, Order, answer, is_order

HERE: dict[str, Any] = {"api_base": API, "api_key": KEY, "num_retries": 0, "max_retries": 0}


def chat(**fields: Any) -> Any:
    return litellm.completion(**HERE | CHAT | {"model": f"openai/{MODEL}"} | fields)


def text(**fields: Any) -> Any:
    words = {"model": f"text-completion-openai/{MODEL}", "prompt": TEXT}
    return litellm.text_completion(**HERE | SAMPLING | words | fields)


def joined(stream: Any) -> str:
    return "".join(part.choices[0].delta.content or "" for part in stream if part.choices)


@check
def plain():
    equal(chat().choices[0].message.content, GIVEN["chat"])
    equal(chat(model=f"hosted_vllm/{MODEL}").choices[0].message.content, GIVEN["chat"])


@check
def stream():
    equal(joined(chat(stream=True)), GIVEN["chat"])
    parts = list(chat(stream=True, stream_options={"include_usage": True}))
    equal(joined(parts), GIVEN["chat"])
    equal(parts[-1].usage.completion_tokens, SAMPLING["max_tokens"])


@check
def stop():
    equal(chat(stop=GIVEN["stop"]).choices[0].message.content, GIVEN["stopped"])
    equal(joined(chat(stop=[GIVEN["stop"]], stream=True)), GIVEN["stopped"])


@check
def seed():
    equal(chat().choices[0].message.content, chat().choices[0].message.content)
    assert chat(seed=4).choices[0].message.content != GIVEN["chat"]


@check
def logprobs():
    found = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    close([x.logprob for x in found], GIVEN["logprobs"])


@check
def n():
    equal([c.message.content for c in chat(n=3).choices], GIVEN["choices"])


@check
def completion():
    equal(text().choices[0].text, GIVEN["completion"])
    parts = text(stream=True)
    equal("".join(p.choices[0].text or "" for p in parts), GIVEN["completion"])


@check
def structured():
    """A pydantic model, and a format as it is sent, with both of its providers for servers like
    this.
    """
    ask = {"messages": [{"role": "user", "content": TASK}], "max_tokens": 400}
    schema = {"name": "order", "schema": Order.model_json_schema()}
    for model in (f"openai/{MODEL}", f"hosted_vllm/{MODEL}"):
        for form in (Order, {"type": "json_schema", "json_schema": schema}):
            found = chat(model=model, response_format=form, **ask).choices[0].message.content
            is_order(Order.model_validate_json(found))
        is_order(
            Order.model_validate_json(
                joined(chat(model=model, response_format=Order, stream=True, **ask))
            )
        )


@check
def loop():
    """Calls that are asked for, one by one and streamed, their results, and an answer."""
    turns: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": WEATHER}]
    ask = {"tools": TOOLS, "max_tokens": 100, "messages": turns}
    for name in RUN:
        choice = {"type": "function", "function": {"name": name}}
        turns.append(chat(**ask, tool_choice=choice).choices[0].message)
        whole = litellm.stream_chunk_builder(
            list(chat(**ask | {"messages": turns[:-1]}, tool_choice=choice, stream=True))
        )
        [call], [streamed] = turns[-1].tool_calls, whole.choices[0].message.tool_calls
        equal(streamed.function.arguments, call.function.arguments)
        said = answer(name, json.loads(call.function.arguments))
        turns.append({"role": "tool", "tool_call_id": call.id, "content": said})
    assert chat(**ask, tool_choice="none").choices[0].message.content
    [call] = (
        chat(**ask, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    )
    assert call.function.name in RUN


@check
def bad_input():
    refused(lambda: chat(temperature=99_999), litellm.BadRequestError, "temperature")
    refused(lambda: chat(extra_body={"nothing": 1}), litellm.BadRequestError, "nothing")
    refused(lambda: chat(model="openai/other"), litellm.NotFoundError, "other")
    refused(lambda: chat(api_key="wrong"), litellm.AuthenticationError, "API key")


@check
def disconnect():
    def begin():
        stream = chat(max_tokens=LONG, stream=True, extra_body={"ignore_eos": True})
        for _, _ in zip(range(5), stream, strict=False):
            pass
        return stream.completion_stream.close

    leaving(begin)
    equal(chat().choices[0].message.content, GIVEN["chat"])
