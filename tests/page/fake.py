"""A server for the page's tests: the routes that the page asks, answered from a recorded run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from longdraft.sampling_parameters import TRACE
from longdraft.server.page import page

HERE = Path(__file__).parent
METHODS = {
    "model": "smollm2",
    "context": 8192,
    "chat": True,
    "methods": [
        {
            "name": "plain",
            "about": "Decodes one token per step: the baseline of every figure.",
            "options": {},
        },
        {
            "name": "vegas",
            "label": "the target under a guided view",
            "about": "The target drafts gamma tokens while reading the keys that its last "
            "verification scored highest.",
            "options": {
                "gamma": {"default": "7", "about": "a whole number from 1 to 512"},
                "keep_ratio": {"default": "0.07", "about": "a number above 0, 1 at most"},
            },
        },
        {
            "name": "vegas-reuse",
            "about": "Vegas, with the `topk` commonest n-grams that began with its first token "
            "added below that token.",
            "options": {"gamma": {"default": "4", "about": "a whole number from 1 to 512"}},
        },
        {
            "name": "vegas-tree",
            "label": "the target under a guided view",
            "about": "Like vegas, but drafts a tree with `widths` nodes per depth.",
            "options": {"widths": {"default": "3,4,4,4", "about": "whole numbers from 1 to 512"}},
        },
    ],
    "default": "vegas-reuse",
    "parameters": {p.name: p.in_json for p in TRACE},
}


def recorded(name: str = "log") -> dict[str, Any]:
    """A run of SmolLM2 on the page's example (log), or of the bundled model after a novel's
    beginning (novel).
    """
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@dataclass
class Fake:
    """What the server answers, and what it was asked. delay_s: between two rounds.

    stop_after: rounds after which the connection breaks; error_after: after which an error ends the
    stream. pause_after: rounds after which it waits for `go`. events: these instead of a trace's.
    about: changes to METHODS.
    """

    trace: dict[str, Any] = field(default_factory=recorded)
    embedded: str | None = None
    key: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    refusal: tuple[int, dict] | None = None
    delay_s: float = 0.0
    stop_after: int | None = None
    error_after: int | None = None
    pause_after: int | None = None
    events: list[Any] | None = None
    go: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    url: str = ""


def rounds_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The round events of a trace, in the order in which lanes that take turns end them."""
    lanes = [
        [{"event": "round", "lane": i, "round": r} for r in x["rounds"]]
        for i, x in enumerate(trace["lanes"])
    ]
    longest = max(map(len, lanes))
    return [lane[i] for i in range(longest) for lane in lanes if i < len(lane)]


def events_of(fake: Fake) -> Iterator[Any]:
    trace = fake.trace
    n = fake.trace["prompt_tokens"]
    for done in range(0, n + 1, 256):
        yield {"event": "reading", "done": done, "total": n}
    lanes = [
        {k: v for k, v in lane.items() if k != "rounds"} | {"ended": None}
        for lane in trace["lanes"]
    ]
    yield {"event": "begin", "trace": trace | {"lanes": lanes, "equal": None}}
    for i, event in enumerate(rounds_of(trace)):
        if i == fake.pause_after:
            fake.go.wait(20)
        if i == fake.stop_after:
            time.sleep(0.3)  # a browser drops what it has not read yet when a connection breaks
            raise ConnectionAbortedError
        if i == fake.error_after:
            yield {
                "error": {
                    "message": "decoding failed",
                    "type": "server_error",
                    "param": None,
                    "code": None,
                }
            }
            return
        yield event
        time.sleep(fake.delay_s)
    yield {
        "event": "end",
        "trace": {
            "equal": trace["equal"],
            "lanes": [{"ended": lane["ended"]} for lane in trace["lanes"]],
        },
    }


class Handler(BaseHTTPRequestHandler):
    """Answers from the server's `fake`; a broken stream closes the connection."""

    protocol_version = "HTTP/1.1"

    @property
    def fake(self) -> Fake:
        return self.server.fake  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.fake.asked.append((self.path, None))
        if self.path == "/":
            html, policy = page(self.fake.embedded)
            return self.answer(
                html.encode(), "text/html; charset=utf-8", 200, {"Content-Security-Policy": policy}
            )
        if self.path == "/v1/longdraft/methods":
            return self.refuse_key() if self.locked() else self.object(METHODS | self.fake.about)
        self.object({"error": {"message": "Not Found"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.asked.append((self.path, body))
        if self.locked():
            return self.refuse_key()
        if self.fake.refusal:
            return self.object(self.fake.refusal[1], self.fake.refusal[0])
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in self.fake.events if self.fake.events is not None else events_of(self.fake):
                self.chunk(f"data: {json.dumps(event, ensure_ascii=False)}\n\n")
            self.chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            pass  # the page has left, or the test wants the stream to break

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def locked(self) -> bool:
        return (
            bool(self.fake.key) and self.headers.get("Authorization") != f"Bearer {self.fake.key}"
        )

    def refuse_key(self) -> None:
        self.object(
            {"error": {"message": "give a valid API key", "type": "authentication_error"}}, 401
        )

    def object(self, content: Any, status: int = 200) -> None:
        self.answer(json.dumps(content).encode(), "application/json", status, {})

    def answer(self, data: bytes, kind: str, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(**options: Any) -> Iterator[Fake]:
    fake = Fake(**options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.fake = fake  # type: ignore[attr-defined]
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
