"""OpenAI's Python package: chat completions, completions and responses."""

from __future__ import annotations

import json
from typing import Any

import openai
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
from shapes import RUN, SYSTEM, TASK, TOOLS, WEATHER, City, Order, Sum, answer, is_order, only_real

client: Any = openai.OpenAI(base_url=API, api_key=KEY, max_retries=0)
chat = client.chat.completions.create
text = client.completions.create
RESPONSE = {
    "model": MODEL,
    "input": TEXT,
    "max_output_tokens": SAMPLING["max_tokens"],
    "temperature": 0.8,
}


def joined(stream: Any) -> str:
    return "".join(part.choices[0].delta.content or "" for part in stream if part.choices)


@check
def plain():
    found = chat(**CHAT)
    equal(found.choices[0].message.content, GIVEN["chat"])
    equal(found.choices[0].finish_reason, "length")
    equal(found.usage.completion_tokens, SAMPLING["max_tokens"])


@check
def stream():
    parts = list(chat(**CHAT, stream=True, stream_options={"include_usage": True}))
    equal(joined(parts), GIVEN["chat"])
    equal(parts[-1].usage.completion_tokens, SAMPLING["max_tokens"])
    with client.chat.completions.stream(
        **CHAT, stop=GIVEN["stop"]
    ) as events:  # it raises if the length ends an answer
        equal(events.get_final_completion().choices[0].message.content, GIVEN["stopped"])


@check
def stop():
    equal(chat(**CHAT, stop=GIVEN["stop"]).choices[0].message.content, GIVEN["stopped"])
    found = chat(**CHAT, stop=[GIVEN["stop"]], stream=True)
    equal(joined(found), GIVEN["stopped"])


@check
def seed():
    equal(chat(**CHAT).choices[0].message.content, chat(**CHAT).choices[0].message.content)
    assert chat(**CHAT | {"seed": 4}).choices[0].message.content != GIVEN["chat"]


@check
def logprobs():
    found = chat(**CHAT, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    close([x.logprob for x in found], GIVEN["logprobs"])
    assert all(len(x.top_logprobs) == 2 for x in found)
    parts = [p.choices[0] for p in chat(**CHAT, logprobs=True, stream=True)]
    close([x.logprob for p in parts if p.logprobs for x in p.logprobs.content], GIVEN["logprobs"])


@check
def n():
    equal([c.message.content for c in chat(**CHAT, n=3).choices], GIVEN["choices"])


@check
def completion():
    found = text(model=MODEL, prompt=TEXT, **SAMPLING, logprobs=1).choices[0]
    equal(found.text, GIVEN["completion"])
    close(found.logprobs.token_logprobs, GIVEN["completion_logprobs"])
    parts = text(model=MODEL, prompt=TEXT, **SAMPLING, stream=True)
    equal("".join(p.choices[0].text for p in parts), GIVEN["completion"])


@check
def response():
    extra = {"seed": SAMPLING["seed"]}
    equal(client.responses.create(**RESPONSE, extra_body=extra).output_text, GIVEN["chat"])
    with client.responses.stream(**RESPONSE, extra_body=extra) as events:
        equal(
            "".join(e.delta for e in events if e.type == "response.output_text.delta"),
            GIVEN["chat"],
        )
    with client.responses.stream(**RESPONSE, extra_body=extra | {"stop": GIVEN["stop"]}) as events:
        equal(events.get_final_response().output_text, GIVEN["stopped"])


@check
def parsed():
    """A pydantic model as the format of an answer, whole and by the helper's events."""
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TASK}],
        "max_tokens": 400,
        "seed": 3,
    }
    is_order(client.chat.completions.parse(**ask, response_format=Order).choices[0].message.parsed)
    with client.chat.completions.stream(**ask, response_format=Order) as events:
        found = list(events)
        is_order(events.get_final_completion().choices[0].message.parsed)
    text = "".join(e.delta for e in found if e.type == "content.delta")
    [done] = [e for e in found if e.type == "content.done"]
    equal((done.content, done.parsed), (text, Order.model_validate_json(text)))


@check
def parsed_response():
    ask = {"model": MODEL, "input": TASK, "max_output_tokens": 400}
    is_order(client.responses.parse(**ask, text_format=Order).output_parsed)
    with client.responses.stream(**ask, text_format=Order) as events:
        is_order(events.get_final_response().output_parsed)


@check
def tool_choice():
    """Functions with strict schemas, which the client makes of pydantic models, in every form of
    the field.
    """
    tools = [openai.pydantic_function_tool(City), openai.pydantic_function_tool(Sum)]
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": WEATHER}],
        "max_tokens": 200,
        "tools": tools,
    }
    ask |= {"parallel_tool_calls": False, "seed": 3}

    def called(choice: Any) -> Any:
        return (
            client.chat.completions.parse(**ask, tool_choice=choice).choices[0].message.tool_calls
        )

    [call] = called("required")
    assert isinstance(call.function.parsed_arguments, City | Sum)
    for model in (City, Sum):
        choice = {"type": "function", "function": {"name": model.__name__}}
        assert isinstance(called(choice)[0].function.parsed_arguments, model)
        with client.chat.completions.stream(**ask, tool_choice=choice) as events:
            found = list(events)
            [call] = events.get_final_completion().choices[0].message.tool_calls
        pieces = [
            e.arguments_delta for e in found if e.type == "tool_calls.function.arguments.delta"
        ]
        [done] = [e for e in found if e.type == "tool_calls.function.arguments.done"]
        equal((done.arguments, done.name), ("".join(pieces), model.__name__))
        equal(call.function.parsed_arguments, model.model_validate_json(done.arguments))
    assert not chat(**ask | {"max_tokens": 20}, tool_choice="none").choices[0].message.tool_calls
    assert chat(**ask | {"max_tokens": 20}, tool_choice="auto").choices[0].finish_reason in (
        "length",
        "stop",
        "tool_calls",
    )


@check
def loop():
    """Calls that are asked for, one by one, their results, and an answer. Parsed messages are sent
    back as they are.
    """
    turns: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": WEATHER}]
    tools = [openai.pydantic_function_tool(model, name=name) for name, (_, model) in RUN.items()]
    ask = {"model": MODEL, "tools": tools, "max_tokens": 300, "seed": 3}
    for name in RUN:
        choice = {"type": "function", "function": {"name": name}}
        found = client.chat.completions.parse(
            **ask, messages=turns, tool_choice=choice, response_format=Order
        )
        turns.append(found.choices[0].message)
        for call in turns[-1].tool_calls:
            said = answer(call.function.name, dict(call.function.parsed_arguments))
            turns.append({"role": "tool", "tool_call_id": call.id, "content": said})
    found = client.chat.completions.parse(
        **ask, messages=turns, tool_choice="none", response_format=Order
    )
    turns.append(found.choices[0].message)
    is_order(turns[-1].parsed)
    turns.append({"role": "user", "content": "Thank you."})
    assert chat(model=MODEL, messages=turns, max_tokens=20).choices[0].message.content


@check
def loop_of_responses():
    """The same with items."""
    tools = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]
    items: list[Any] = [{"role": "user", "content": WEATHER}]
    ask = {
        "model": MODEL,
        "instructions": SYSTEM,
        "tools": tools,
        "max_output_tokens": 300,
        "text_format": Order,
    }
    for name in RUN:
        found = client.responses.parse(
            **ask, input=items, tool_choice={"type": "function", "name": name}
        )
        items += found.output
        for call in (item for item in found.output if item.type == "function_call"):
            said = answer(call.name, json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": said})
    found = client.responses.parse(**ask, input=items, tool_choice="none")
    is_order(found.output_parsed)
    items += [*found.output, {"role": "user", "content": "Thank you."}]
    assert client.responses.create(model=MODEL, input=items, max_output_tokens=20).output_text


@check
def agent():
    """The model decides on each step."""
    only_real()
    turns: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": WEATHER}]
    called = []
    for _ in range(4):
        turns.append(
            chat(model=MODEL, tools=TOOLS, max_tokens=200, temperature=0, messages=turns)
            .choices[0]
            .message
        )
        if not turns[-1].tool_calls:
            break
        for call in turns[-1].tool_calls:
            called.append(call.function.name)
            said = answer(call.function.name, json.loads(call.function.arguments))
            turns.append({"role": "tool", "tool_call_id": call.id, "content": said})
    equal(sorted(called), ["add", "weather"])
    assert "42" in turns[-1].content and "21" in turns[-1].content, turns[-1].content


@check
def models():
    equal([m.id for m in client.models.list()], [MODEL])
    equal(client.models.retrieve(MODEL).id, MODEL)


@check
def values_that_ask_for_nothing():
    """A user who spells out OpenAI's defaults gets what a user gets who does not."""
    spelled = {
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "metadata": {"run": "1"},
    }
    spelled |= {"response_format": {"type": "text"}, "n": 1, "logprobs": False, "user": "me"}
    equal(chat(**CHAT, **spelled).choices[0].message.content, GIVEN["chat"])
    equal(
        text(model=MODEL, prompt=TEXT, **SAMPLING, best_of=1, suffix=None).choices[0].text,
        GIVEN["completion"],
    )


@check
def bad_input():
    refused(lambda: chat(**CHAT | {"temperature": 99_999}), openai.BadRequestError, "temperature")
    refused(
        lambda: chat(**CHAT, stream=True, extra_body={"best_of": 2}),
        openai.BadRequestError,
        "best_of",
    )
    refused(lambda: chat(**CHAT, store=True), openai.BadRequestError, "store")
    refused(lambda: chat(**CHAT | {"model": "other"}), openai.NotFoundError, "other")
    refused(lambda: chat(**CHAT | {"max_tokens": 10**6}), openai.BadRequestError, "new tokens")
    other = openai.OpenAI(base_url=API, api_key="wrong", max_retries=0)
    refused(other.models.list, openai.AuthenticationError, "API key")


@check
def disconnect():
    def begin():
        stream = chat(**CHAT | {"max_tokens": LONG}, stream=True, extra_body={"ignore_eos": True})
        for _, _ in zip(range(5), stream, strict=False):
            pass
        return stream.close

    leaving(begin)
    equal(chat(**CHAT).choices[0].message.content, GIVEN["chat"])
