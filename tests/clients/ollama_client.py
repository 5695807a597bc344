"""The Python package `ollama`: a client of Ollama's API."""

from __future__ import annotations

from typing import Any

import ollama
from common import GIVEN, KEY, LONG, MODEL, SAMPLING, TEXT, URL, check, equal, leaving, refused

OPTIONS = {
    "num_predict": SAMPLING["max_tokens"],
    "seed": SAMPLING["seed"],
    "temperature": SAMPLING["temperature"],
}
OPTIONS |= {"top_k": 0, "top_p": 1.0}


def client(key: str = KEY) -> ollama.Client:
    return ollama.Client(host=URL, headers={"Authorization": f"Bearer {key}"})


def chat(options: dict[str, Any] | None = None, **fields: Any) -> Any:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": TEXT}]} | fields
    return client().chat(**asked, options=OPTIONS | (options or {}))


@check
def plain():
    found = chat()
    equal(found.message.content, GIVEN["chat"])
    equal(found.eval_count, SAMPLING["max_tokens"])
    equal(client().generate(MODEL, TEXT, options=OPTIONS).response, GIVEN["chat"])


@check
def completion():
    equal(client().generate(MODEL, TEXT, raw=True, options=OPTIONS).response, GIVEN["completion"])


@check
def stream():
    equal("".join(part.message.content for part in chat(stream=True)), GIVEN["chat"])
    parts = client().generate(MODEL, TEXT, raw=True, stream=True, options=OPTIONS)
    equal("".join(part.response for part in parts), GIVEN["completion"])


@check
def stop():
    equal(chat({"stop": [GIVEN["stop"]]}).message.content, GIVEN["stopped"])


@check
def seed():
    equal(chat().message.content, chat().message.content)
    assert chat({"seed": 4}).message.content != GIVEN["chat"]


@check
def models():
    equal([m.model for m in client().list().models], [MODEL])
    assert client().show(MODEL).capabilities[0] == "completion"


@check
def bad_input():
    refused(lambda: chat({"mirostat": 1}), ollama.ResponseError, "options.mirostat")
    refused(lambda: chat(model="other"), ollama.ResponseError, "other")
    refused(lambda: client("wrong").list(), ollama.ResponseError, "API key")


@check
def disconnect():
    def begin():
        stream = chat({"num_predict": LONG}, stream=True)
        for _, _ in zip(range(3), stream, strict=False):
            pass
        return stream.close

    leaving(begin)
    equal(chat().message.content, GIVEN["chat"])
