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
import pytest

from longdraft import Sampler, Session, build, generate, load
from longdraft.models.text import text_of, token_ids
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.server.http.long_texts import Renderers
from longdraft.server.uvicorn_server import Server, ServerSettings

NEW = 24
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


class SharedRenderers(Renderers):
    """Processes for chat templates that outlive the servers of a test process: each would import
    for a second or two.
    """

    def close(self) -> None:
        pass


@cache
def renderers() -> Renderers:
    return SharedRenderers()


@contextmanager
def serving(
    method: str = "vegas", drafter: Any = None, session: dict | None = None, **settings: Any
) -> Iterator[Server]:
    lm, tokenizer = loaded()
    options = {
        "batch": 4,
        "slots": 512,
        "chunk": 64,
        "queue": 16,
        "prefixes": PrefixCache(4096),
    } | (session or {})
    made = Session(lm, drafter or build(method, lm), **options)
    server = Server(
        made, tokenizer, ServerSettings("tiny", method, **({"port": 0, "most_new": 256} | settings))
    )
    for service in server.models:
        service.templates = renderers()
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


def address(server: Server) -> tuple[str, int]:
    return server.servers[0].sockets[0].getsockname()[:2]


def client(server: Server, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url_of(server), timeout=60, **options)


def chunks(response: httpx.Response) -> list[dict]:
    """The objects of a stream of server-sent events, which must end as OpenAI's do."""
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def asked(**more: Any) -> dict:
    return {
        "model": "tiny",
        "prompt": TEXT,
        "max_tokens": NEW,
        "seed": 3,
        "ignore_eos": True,
    } | more


def said(
    prompt: list[int], sampler: Sampler | None = None, seed: int = 3, eos: Any = (), new: int = NEW
) -> str:
    """What `generate` says."""
    lm, tokenizer = loaded()
    [tokens] = generate(
        lm, [prompt], max_new_tokens=new, sampler=sampler or Sampler(1.0), seed=seed, eos=eos
    )
    return text_of(tokenizer, tokens)


def tokens_of(text: str) -> list[int]:
    return token_ids(loaded()[1], text)


def quiet(server: Server, most_s: float = 10) -> bool:
    """Whether nothing runs or waits, soon."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        if (
            not server.engine.open
            and not server.engine.session.running
            and not server.engine.session.waiting
        ):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with client(server) as found:
        yield found
