"""The command `curl`, as the documentation of other servers shows it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from common import (
    API,
    CHAT,
    GIVEN,
    KEY,
    LONG,
    MODEL,
    SAMPLING,
    TEXT,
    URL,
    check,
    close,
    equal,
    leaving,
)

PROMPT = {"model": MODEL, "prompt": TEXT, **SAMPLING}


def words(path: str, body: Any = None, key: str = KEY) -> list[str]:
    given = (
        ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body is not None else []
    )
    return ["curl", "-sS", "-N", "-m", "60", "-H", f"Authorization: Bearer {key}", *given, path]


def curl(path: str, body: Any = None, key: str = KEY) -> tuple[int, str]:
    """(status, body)"""
    extra = ["-w", "\n%{http_code}"]
    found = subprocess.run(
        [*words(path, body, key), *extra], capture_output=True, text=True, check=True
    ).stdout
    text, _, status = found.rpartition("\n")
    return int(status), text


def chat(**fields: Any) -> Any:
    status, body = curl(f"{API}/chat/completions", CHAT | fields)
    equal(status, 200)
    return json.loads(body)


def parts(path: str, body: Any) -> list[Any]:
    """The objects of a stream."""
    lines = [line for line in curl(path, body | {"stream": True})[1].splitlines() if line]
    equal(lines[-1], "data: [DONE]")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@check
def plain():
    equal(chat()["choices"][0]["message"]["content"], GIVEN["chat"])
    equal(
        json.loads(curl(f"{API}/completions", PROMPT)[1])["choices"][0]["text"], GIVEN["completion"]
    )


@check
def stream():
    found = parts(f"{API}/chat/completions", CHAT)
    equal("".join(p["choices"][0]["delta"].get("content", "") for p in found), GIVEN["chat"])
    equal(
        "".join(p["choices"][0]["text"] for p in parts(f"{API}/completions", PROMPT)),
        GIVEN["completion"],
    )


@check
def stream_with_usage_in_every_part():
    """vLLM's continuous_usage_stats, which load generators ask for."""
    wanted = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [
        p["usage"]["completion_tokens"] for p in parts(f"{API}/chat/completions", CHAT | wanted)
    ]
    assert counts == sorted(counts) and counts[-1] == SAMPLING["max_tokens"], counts


@check
def stop():
    equal(chat(stop=GIVEN["stop"])["choices"][0]["message"]["content"], GIVEN["stopped"])
    found = parts(f"{API}/chat/completions", CHAT | {"stop": [GIVEN["stop"]]})
    equal("".join(p["choices"][0]["delta"].get("content", "") for p in found), GIVEN["stopped"])


@check
def seed():
    equal(chat()["choices"], chat()["choices"])
    assert chat(seed=4)["choices"][0]["message"]["content"] != GIVEN["chat"]


@check
def logprobs():
    found = chat(logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    close([x["logprob"] for x in found], GIVEN["logprobs"])


@check
def n():
    equal([c["message"]["content"] for c in chat(n=3)["choices"]], GIVEN["choices"])


@check
def other_paths():
    equal(json.loads(curl(f"{API}/models")[1])["data"][0]["id"], MODEL)
    equal(curl(f"{URL}/health", key="wrong")[0], 200)
    tokens = json.loads(curl(f"{URL}/tokenize", {"prompt": TEXT})[1])["tokens"]
    equal(json.loads(curl(f"{URL}/detokenize", {"tokens": tokens})[1])["prompt"], TEXT)


@check
def bad_input():
    for path, body, key, status, word in (
        ("/chat/completions", CHAT | {"temperature": 99_999}, KEY, 400, "temperature"),
        ("/chat/completions", CHAT | {"audio": {}}, KEY, 400, "audio"),
        ("/chat/completions", CHAT | {"model": "other"}, KEY, 404, "other"),
        ("/chat/completions", [], KEY, 400, "object"),
        ("/models", None, "wrong", 401, "API key"),
    ):
        found, text = curl(f"{API}{path}", body, key)
        equal(found, status)
        assert word in json.loads(text)["error"]["message"], text


@check
def disconnect():
    def begin():
        body = CHAT | {"max_tokens": LONG, "ignore_eos": True, "stream": True}
        process = subprocess.Popen(words(f"{API}/chat/completions", body), stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()

        def leave() -> None:
            process.kill()
            process.wait()

        return leave

    leaving(begin)
    equal(chat()["choices"][0]["message"]["content"], GIVEN["chat"])
