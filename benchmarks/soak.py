"""A server for an hour under four clients: structured output, calls, long prompts, streams.

    python benchmarks/soak.py --soak-minutes 60

Two models in one server: SmolLM2, and the bundled model with a template for tools. Every answer is
judged (is JSON valid by its schema, is a call one that was asked for), and some seeded ones are
compared with what `generate` writes, after the server has ended. Memory, threads and open files are
sampled all the time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
from arguments import Arguments, at_least, status
from jsonschema import Draft202012Validator
from rich.console import Console
from server_process import ServerProcess

from longdraft import Constraints, Sampler, generate, load
from longdraft.core.provenance import checkout, now, processor, versions
from longdraft.models.chat import chat_tokens
from longdraft.models.fetch import fetched
from longdraft.models.text import text_of
from longdraft.recording.record_file import RecordFile

CLIENTS = 4
ROWS = 4
CONTEXT = 4096
KINDS = ("chat", "stream", "leave", "structured", "call", "long", "refused")
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n<tool_call>\n"
    '{"name": <name>, "arguments": <object>}\n</tool_call>\n{% endif %}'
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "books"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Rome"]}},
        "required": ["city"],
    },
}
QUESTIONS = (
    "Describe a person.",
    "Who was at the door?",
    "Write a line of Python.",
    "What is the weather in Rome?",
)
DOCUMENT = (
    "The harbor was quiet, and the boats lay in a row. Nobody had seen the captain since "
    "the storm.\n" * 90
)


def body_of(kind: str, rng: Random) -> dict[str, Any]:
    """A request of this kind; all but refused ones can be answered."""
    question = rng.choice(QUESTIONS)
    if kind == "long":
        question = f"{DOCUMENT if rng.random() < 0.5 else f'{rng.random()} {DOCUMENT}'}\n{question}"
    body = {
        "model": "tiny" if kind == "call" else rng.choice(["tiny", "smollm2"]),
        "seed": rng.randrange(1 << 30),
    }
    body |= {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": rng.randrange(8, 120),
    }
    if kind == "structured":
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        return body | {"response_format": form, "stream": rng.random() < 0.5}
    if kind == "call":
        return body | {
            "tools": [{"type": "function", "function": WEATHER}],
            "tool_choice": "required",
        }
    if kind == "refused":
        return body | rng.choice(
            [{"n": 99}, {"max_tokens": 1 << 20}, {"top_p": 7}, {"model": "other"}, {"stop": [""]}]
        )
    return (
        body
        | {"stream": kind in ("stream", "leave")}
        | ({"max_tokens": 400} if kind == "leave" else {})
    )


def ask(http: httpx.Client, body: dict[str, Any], leave: bool) -> tuple[int, dict[str, Any]]:
    """The status, and the message with its finish_reason; of a stream that is left, nothing."""
    if not body.get("stream"):
        found = http.post("/v1/chat/completions", json=body)
        if found.status_code != 200:
            return found.status_code, {}
        choice = found.json()["choices"][0]
        return 200, choice["message"] | {"finish_reason": choice["finish_reason"]}
    text = ""
    finish = None
    ended = False
    with http.stream("POST", "/v1/chat/completions", json=body) as stream:
        for count, line in enumerate(stream.iter_lines()):
            if leave and count > 8:
                return 200, {}
            if not line.startswith("data: "):
                continue
            ended = line == "data: [DONE]"
            part = {} if ended else json.loads(line[6:])
            if "error" in part:
                return 500, {}
            for choice in part.get("choices", []):
                text = text + (choice["delta"].get("content") or "")
                finish = choice["finish_reason"] or finish
    return (200 if ended else 599), {"content": text, "finish_reason": finish}


def judged(kind: str, code: int, message: dict[str, Any]) -> str:
    """What became of a request, in a word or two; anything but "fine" is a fault."""
    if kind == "refused":
        return "fine" if code in (400, 404) else f"was answered with {code}"
    if code != 200:
        return f"status {code}"
    if message.get("finish_reason") == "length" or kind == "leave":
        return "fine"
    if kind == "structured":
        return (
            "fine"
            if Draft202012Validator(PERSON).is_valid(json.loads(message["content"]))
            else "invalid JSON"
        )
    if kind == "call":
        calls = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message["tool_calls"]
        ]
        return (
            "fine"
            if all(n == "weather" and set(a) == {"city"} for n, a in calls) and calls
            else "another call"
        )
    return "fine"


def sample(server: ServerProcess) -> dict[str, float]:
    return {"rss_mb": server.rss_mb, "files": server.open_files, "threads": server.threads}


def unequal(
    asked: list[tuple[dict[str, Any], dict[str, Any]]], model: Path
) -> list[dict[str, Any]]:
    """The requests whose answer is not what `generate` writes for the same prompt, seed and
    constraint.
    """
    different = []
    loaded = {"tiny": load(str(model)), "smollm2": load("smollm2")}
    constraints = {name: Constraints.of(*pair) for name, pair in loaded.items()}
    for body, message in asked:
        target, tokenizer = loaded[body["model"]]
        constraint = (
            constraints[body["model"]].json_schema(PERSON) if "response_format" in body else None
        )
        (row,) = generate(
            target,
            [chat_tokens(tokenizer, body["messages"])],
            max_new_tokens=body["max_tokens"],
            sampler=Sampler(1.0, constraint=constraint),
            seed=body["seed"],
        )
        if text_of(tokenizer, row) != message["content"]:
            different.append(body)
    return different


def soak(server: ServerProcess, seconds: float, every: int, seed: int) -> dict[str, Any]:
    """Four clients for so long; kept: seeded answers to be compared."""
    until = time.monotonic() + seconds
    outcomes = Counter[str]()
    lock = threading.Lock()
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    seeded = [0]
    waits = list[float]()

    url = f"http://{server.address[0]}:{server.address[1]}"

    def client(number: int) -> None:
        rng = Random(seed + number)
        with httpx.Client(base_url=url, timeout=120) as http:
            while time.monotonic() < until:
                kind = rng.choice(KINDS)
                body = body_of(kind, rng)
                begin = time.monotonic()
                try:
                    code, message = ask(http, body, kind == "leave")
                    result = judged(kind, code, message)
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    code = 0
                    message = {}
                    result = type(error).__name__
                with lock:
                    outcomes[f"{kind}: {result}"] += 1
                    waits.append(time.monotonic() - begin)
                    if code == 200 and kind in ("chat", "stream", "structured", "long"):
                        seeded[0] += 1
                        if seeded[0] % every == 0:
                            kept.append((body, message))

    samples = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, i) for i in range(CLIENTS)]
        while time.monotonic() < until:
            time.sleep(min(5.0, seconds / 20))
            samples.append(sample(server))
        for future in running:
            future.result()
    part = max(len(samples) // 5, 1)
    figures: dict[str, Any] = {
        "requests": sum(outcomes.values()),
        "outcomes": dict(sorted(outcomes.items())),
    }
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        fifths = {
            "second_fifth": median(values[part : 2 * part]),
            "last_fifth": median(values[-part:]),
        }
        figures[key] = {"first": values[0], **fifths, "most": max(values)}
    figures |= {
        "median_request_s": median(waits),
        "longest_request_s": max(waits),
        "faults": server.errors,
    }
    server.send(signal.SIGTERM)
    figures["exit_status"] = server.process.wait(60)
    different = unequal(kept, server.place / "model")
    return figures | {
        "compared": len(kept),
        "unequal": len(different),
        "first_unequal": different[:1],
    }


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("seed", "out")
    parser.add_argument(
        "--soak-minutes", type=at_least(0.1), default=60.0, help="how long the clients ask"
    )
    parser.add_argument(
        "--compared", type=at_least(1), default=50, help="compare one seeded answer in this many"
    )
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    record: dict[str, Any] = {
        "task": "soak",
        "minutes": given.soak_minutes,
        "clients": CLIENTS,
        "rows": ROWS,
    }
    record |= {
        "context": CONTEXT,
        "seed": given.seed,
        "device": processor(),
        "versions": versions(),
        **checkout(),
    }
    record |= {"command": given.command, "time": now(), "load_before": os.getloadavg()[0]}
    log = RecordFile(given.out)
    more = (
        "-m",
        str(fetched("smollm2")),
        "--name",
        "smollm2",
        "--batch",
        str(ROWS),
        "--context",
        str(CONTEXT),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(
            Path(folder), *more, "--dtype", "bfloat16", method="auto", template=TEMPLATE
        ) as server,
    ):
        record |= soak(server, 60 * given.soak_minutes, given.compared, given.seed)
    log.append(record)
    Console().print_json(data=record)
    faults = [name for name in record["outcomes"] if not name.endswith(": fine")]
    return 1 if faults or record["unequal"] or record["faults"] or record["exit_status"] else 0


if __name__ == "__main__":
    sys.exit(status(main))
