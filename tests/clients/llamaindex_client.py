"""LlamaIndex: its class for servers of OpenAI's API, its structured programs and its calls of
functions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from common import API, GIVEN, KEY, MODEL, SAMPLING, TEXT, check, equal, refused
from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from shapes import RUN, SYSTEM, TASK, WEATHER, Order, Sum, is_order, only_real

ASK = [ChatMessage(role="user", content=TEXT)]
HOW = {"seed": SAMPLING["seed"]}
TEMPLATE = PromptTemplate("{task}")
FUNCTIONS = [FunctionTool.from_defaults(call, fn_schema=model) for call, model in RUN.values()]
PROGRAMS = {"is_function_calling_model": True}, {"should_use_structured_outputs": True}


def model(tokens: int = SAMPLING["max_tokens"], **more: Any) -> OpenAILike:
    words = {
        "model": MODEL,
        "api_base": API,
        "api_key": KEY,
        "max_retries": 0,
        "is_chat_model": True,
    }
    words |= {
        "temperature": SAMPLING["temperature"],
        "max_tokens": tokens,
        "additional_kwargs": HOW,
    }
    return OpenAILike(**words | more)


@check
def plain():
    equal(model().chat(ASK).message.content, GIVEN["chat"])
    equal(asyncio.run(model().achat(ASK)).message.content, GIVEN["chat"])


@check
def stream():
    equal("".join(part.delta or "" for part in model().stream_chat(ASK)), GIVEN["chat"])


@check
def completion():
    equal(model(is_chat_model=False).complete(TEXT).text, GIVEN["completion"])
    equal(
        "".join(p.delta or "" for p in model(is_chat_model=False).stream_complete(TEXT)),
        GIVEN["completion"],
    )


@check
def stop():
    equal(model().chat(ASK, stop=[GIVEN["stop"]]).message.content, GIVEN["stopped"])


@check
def logprobs():
    """It gives the alternatives of each token."""
    equal(
        [len(x) for x in model(logprobs=True, top_logprobs=2).chat(ASK).logprobs],
        [2] * SAMPLING["max_tokens"],
    )


@check
def structured():
    """By a function that must be called, and by response_format."""
    for more in PROGRAMS:
        asked = model(400, **more)
        is_order(asked.as_structured_llm(Order).complete(TASK).raw)
        is_order(asked.structured_predict(Order, TEMPLATE, task=TASK))
        is_order(asyncio.run(asked.astructured_predict(Order, TEMPLATE, task=TASK)))
    *_, last = asked.stream_structured_predict(Order, TEMPLATE, task=TASK)
    is_order(last)


@check
def program():
    asked = model(400, is_function_calling_model=True)
    made = FunctionCallingProgram.from_defaults(
        Order, prompt_template_str=TASK, llm=asked, tool_choice="Order"
    )
    is_order(made())
    *_, last = made.stream_call()
    is_order(last)


@check
def tool_choice():
    asked = model(200, is_function_calling_model=True)
    found = asked.chat_with_tools(
        FUNCTIONS, WEATHER, tool_required=True, allow_parallel_tool_calls=False
    )
    [call] = asked.get_tool_calls_from_response(found)
    assert call.tool_name in ("weather", "add")
    found = asked.chat_with_tools(FUNCTIONS, WEATHER, tool_choice="add")
    [call] = asked.get_tool_calls_from_response(found)
    assert Sum(**call.tool_kwargs)
    *_, last = asked.stream_chat_with_tools(FUNCTIONS, WEATHER, tool_choice="add")
    [call] = asked.get_tool_calls_from_response(last)
    assert Sum(**call.tool_kwargs)


@check
def loop():
    """Calls that are asked for, one by one, their results, and an answer."""
    asked = model(200, is_function_calling_model=True)
    turns = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=WEATHER)]
    for tool in FUNCTIONS:
        found = asked.chat_with_tools(FUNCTIONS, chat_history=turns, tool_choice=tool.metadata.name)
        [call] = asked.get_tool_calls_from_response(found)
        said = ChatMessage(role="tool", content=str(tool(**call.tool_kwargs)))
        said.additional_kwargs["tool_call_id"] = call.tool_id
        turns += [found.message, said]
    assert asked.chat_with_tools(FUNCTIONS, chat_history=turns, tool_choice="none").message.content


@check
def agent():
    """The model decides, and one call is made."""
    only_real()
    asked = model(200, is_function_calling_model=True, temperature=0.0)
    found = asked.predict_and_call(FUNCTIONS, "How much is 17 plus 25?", error_on_tool_error=True)
    assert "42" in found.response, found.response


@check
def bad_input():
    refused(
        lambda: model(additional_kwargs={"top_p": 9}).chat(ASK), openai.BadRequestError, "top_p"
    )
    refused(
        lambda: model(additional_kwargs={"extra_body": {"nothing": 1}}).chat(ASK),
        openai.BadRequestError,
        "nothing",
    )
    refused(lambda: model(model="other").chat(ASK), openai.NotFoundError, "other")
