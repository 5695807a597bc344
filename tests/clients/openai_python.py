"""OpenAI's Python package: chat completions, completions and responses."""

from __future__ import annotations

from typing import Any

import openai
from common import API, CHAT, GIVEN, KEY, LONG, MODEL, SAMPLING, TEXT, check, close, equal, leaving, refused

client: Any = openai.OpenAI(base_url=API, api_key=KEY, max_retries=0)
chat, text = client.chat.completions.create, client.completions.create
RESPONSE = {"model": MODEL, "input": TEXT, "max_output_tokens": SAMPLING["max_tokens"], "temperature": 0.8}


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
    with client.chat.completions.stream(**CHAT, stop=GIVEN["stop"]) as events:  # it raises if the length ends an answer
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
        equal("".join(e.delta for e in events if e.type == "response.output_text.delta"), GIVEN["chat"])
    with client.responses.stream(**RESPONSE, extra_body=extra | {"stop": GIVEN["stop"]}) as events:
        equal(events.get_final_response().output_text, GIVEN["stopped"])


@check
def models():
    equal([m.id for m in client.models.list()], [MODEL])
    equal(client.models.retrieve(MODEL).id, MODEL)


@check
def values_that_ask_for_nothing():
    """A user who spells out OpenAI's defaults gets what a user gets who does not."""
    spelled = {"store": False, "service_tier": "auto", "modalities": ["text"], "metadata": {"run": "1"}}
    spelled |= {"response_format": {"type": "text"}, "n": 1, "logprobs": False, "user": "me"}
    equal(chat(**CHAT, **spelled).choices[0].message.content, GIVEN["chat"])
    equal(text(model=MODEL, prompt=TEXT, **SAMPLING, best_of=1, suffix=None).choices[0].text, GIVEN["completion"])


@check
def bad_input():
    refused(lambda: chat(**CHAT | {"temperature": 99_999}), openai.BadRequestError, "temperature")
    refused(lambda: chat(**CHAT, stream=True, extra_body={"best_of": 2}), openai.BadRequestError, "best_of")
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
