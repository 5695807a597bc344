"""langchain-openai: its chat model and its text model."""

from __future__ import annotations

from typing import Any

import openai
from common import API, GIVEN, KEY, LONG, MODEL, SAMPLING, TEXT, check, close, equal, leaving, refused
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

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
    equal([p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata], [SAMPLING["max_tokens"]])


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
    found = chat(logprobs=True, top_logprobs=2).invoke(TEXT).response_metadata["logprobs"]["content"]
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
    equal(chat(use_responses_api=True, seed=None, extra_body={"seed": 3}).invoke(TEXT).text, GIVEN["chat"])


@check
def bad_input():
    refused(lambda: chat(temperature=99_999).invoke(TEXT), openai.BadRequestError, "temperature")
    refused(lambda: list(chat(extra_body={"nothing": 1}).stream(TEXT)), openai.BadRequestError, "nothing")
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
