"""A server that got a signal: what new requests, probes and running streams see until it ends, and
when it ends.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from support.served import address, asked, chunks, client, serving

from longdraft.drafters import Drafter
from longdraft.server.http.guard import Guard
from longdraft.server.uvicorn_server import Server


class Slow(Drafter):
    """Takes a while for each step, until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def grow(self, tree, seqs, limits):
        self.go_on.wait(0.3)
        return tree


def drain(server: Server) -> None:
    """As SIGTERM does."""
    loop = server.engine._loop
    assert loop is not None
    loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
    while not server.service.stopping:
        time.sleep(0.001)


def ended(server: Server) -> bool:
    """Whether the server ends soon, with status 0. The grace time of a test that asks is longer, or
    over.
    """
    deadline = time.monotonic() + 20
    while getattr(server, "status", None) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return getattr(server, "status", None) == 0


@contextmanager
def draining(**settings: Any) -> Iterator[tuple[Server, Any, Any, threading.Event]]:
    """A server that has got the signal while a stream runs, a client with a kept connection, the
    stream's end, and what lets the stream hurry.
    """
    slow = Slow()
    with (
        serving(drafter=slow, **settings) as server,
        client(server) as kept,
        ThreadPoolExecutor(1) as pool,
    ):

        def stream() -> list[dict]:
            body = asked(stream=True, max_tokens=250)
            with (
                client(server) as http,
                http.stream("POST", "/v1/completions", json=body) as response,
            ):
                return chunks(response)

        assert kept.get("/health").status_code == 200
        running = pool.submit(stream)
        while not server.engine.open:
            time.sleep(0.001)
        drain(server)
        try:
            yield server, kept, running, slow.go_on
        finally:
            slow.go_on.set()


def seen(server: Server, kept: Any) -> list[int]:
    """The statuses of what clients send while a server drains, and that those refused are told what
    to do.
    """
    with client(server) as new:
        probes = [kept.get("/health"), new.get("/health"), new.get("/health"), new.get("/metrics")]
        refused = [new.post("/v1/completions", json=asked()), kept.get("/v1/models")]
    assert all(r.headers.get("connection") == "close" for r in probes + refused)
    assert all(int(r.headers["Retry-After"]) > 0 for r in refused if r.status_code == 503)
    return [r.status_code for r in probes + refused]


@pytest.mark.full
@pytest.mark.timing
def test_a_draining_server_says_so_and_ends_with_its_last_request():
    with draining() as (server, kept, running, go_on):
        place = address(server)
        assert seen(server, kept) == [503, 503, 503, 200, 503, 503]
        assert not running.done()
        go_on.set()
        assert running.result()[-1]["choices"][0]["finish_reason"] == "length"
        assert ended(server)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(place, 1)


@pytest.mark.full
@pytest.mark.timing
def test_a_guard_that_does_not_know_of_it_is_noticed(monkeypatch):
    init = Guard.__init__
    monkeypatch.setattr(
        Guard, "__init__", lambda self, *a, **k: init(self, *a, **k | {"draining": lambda: False})
    )
    with draining() as (server, kept, _, _), pytest.raises(AssertionError):
        seen(server, kept)


@pytest.mark.timing
def test_the_grace_time_ends_streams_and_server():
    with draining(grace_s=0.3) as (server, _, running, _):
        assert "shutting down" in running.result()[-1]["error"]["message"]
        assert ended(server)


@pytest.mark.full
@pytest.mark.timing
def test_a_large_body_gets_its_answer():
    """A connection that was closed before its body was read would be reset."""
    with draining() as (server, _, _, _), client(server) as http:
        for size in (100, 3 << 20):
            assert http.post("/v1/completions", json=asked(prompt="a" * size)).status_code == 503


@pytest.mark.timing
@pytest.mark.parametrize("probes", [False, True])
def test_an_idle_server_ends_at_once(probes):
    """Probes do not keep it."""
    with serving(grace_s=600) as server, client(server) as http:
        assert http.get("/health").status_code == 200
        drain(server)
        deadline = time.monotonic() + 20
        while probes and getattr(server, "status", None) is None and time.monotonic() < deadline:
            try:
                http.get("/metrics")
            except Exception:  # the port was closed
                break
        assert ended(server)
