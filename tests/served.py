"""A server on this machine, in a thread, with the bundled model; and what clients send it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

from longdraft import Session, build, load
from longdraft.engine.prefix_cache import PrefixCache
from longdraft.server.run import Server, Settings

TEXT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@cache
def loaded() -> tuple[Any, Any]:
    """The bundled model in float32, with a chat template."""
    lm, tokenizer = load("bundled", "float32")
    tokenizer.chat_template = CHAT
    return lm, tokenizer


@contextmanager
def serving(
    method: str = "vegas", drafter: Any = None, session: dict | None = None, **settings: Any
) -> Iterator[Server]:
    lm, tokenizer = loaded()
    options = {"batch": 4, "slots": 512, "chunk": 64, "queue": 16, "prefixes": PrefixCache(4096)} | (session or {})
    made = Session(lm, drafter or build(method, lm), **options)
    server = Server(made, tokenizer, Settings("tiny", method, **({"port": 0, "most_new": 256} | settings)))
    thread = threading.Thread(target=lambda: setattr(server, "status", server.run()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.service.stopping = True
        server.engine.cancel_all()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


def url_of(server: Server) -> str:
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://{host}:{port}"


def client(server: Server, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url_of(server), timeout=60, **options)


def chunks(response: httpx.Response) -> list[dict]:
    """The objects of a stream of server-sent events, which must end as OpenAI's do."""
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]
