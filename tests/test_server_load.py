"""The server under load: overload, clients that leave, failures, signals; and that nothing is left afterwards."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from served import TEXT, asked, chunks, client, quiet, said, serving, tokens_of, url_of

from longdraft.drafters import Drafter
from longdraft.ops.threads import pin, release
from longdraft.server.run import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def test_a_full_queue_answers_429():
    with serving(session={"batch": 1, "queue": 1}) as server, ThreadPoolExecutor(8) as pool:

        def ask(i: int) -> httpx.Response:
            with client(server) as http:
                return http.post("/v1/completions", json=asked(max_tokens=100, seed=i))

        found = list(pool.map(ask, range(8)))
        codes = [r.status_code for r in found]
        assert set(codes) == {200, 429} and all(r.headers["Retry-After"] for r in found if r.status_code == 429)
        assert quiet(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(server, stream):
    before = server.engine.session.stats.emitted
    body = json.dumps(asked(stream=stream, max_tokens=250)).encode()
    host, port = url_of(server).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as s:
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        if stream:
            s.recv(1000)
        else:
            while not server.engine.open:
                time.sleep(0.001)
    assert quiet(server) and server.engine.session.stats.emitted - before < 250


def test_a_request_that_takes_too_long_ends():
    with serving(request_s=0.3, queue_s=0.2, session={"batch": 1}) as server, client(server) as http:
        body = asked(max_tokens=250, n=4)
        response = http.post("/v1/completions", json=body)
        assert response.status_code == 503 and "within" in response.json()["error"]["message"]
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            assert "within" in chunks(stream)[-1]["error"]["message"]
        assert quiet(server)


class Failing(Drafter):
    """Fails at a prompt that has a certain token."""

    def grow(self, tree, seqs, limits):
        if any(7 in seqs.tokens[b, :n].tolist() for b, n in enumerate(seqs.length.tolist())):
            raise RuntimeError("secret details")
        return tree


def test_one_failure_is_an_error_and_the_server_goes_on():
    with serving(drafter=Failing()) as server, client(server) as http:
        bad = http.post("/v1/completions", json=asked(prompt=[5, 7, 9]))
        assert bad.status_code == 500 and "secret" not in bad.text
        assert http.post("/v1/completions", json=asked()).json()["choices"][0]["text"] == said(tokens_of(TEXT))
        assert http.get("/health").status_code == 200


class Fatal(Drafter):
    """Ends the decoding thread."""

    def grow(self, tree, seqs, limits):
        raise SystemExit(3)


def test_a_failure_for_good_ends_the_server_with_a_status():
    with serving(drafter=Fatal()) as server, client(server) as http:
        assert http.post("/v1/completions", json=asked()).status_code == 500
        deadline = time.monotonic() + 10
        while getattr(server, "status", None) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert isinstance(server.engine.failure, SystemExit) and server.status == 1


def test_a_stopping_server_ends_its_streams_properly():
    with serving(grace_s=0.2) as server, client(server) as http:
        ended: list[list[dict]] = []

        def ask() -> None:
            with (
                client(server) as mine,
                mine.stream("POST", "/v1/completions", json=asked(stream=True, max_tokens=250)) as r,
            ):
                ended.append(chunks(r))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for t in threads:
            t.start()
        while server.engine.open < 3:
            time.sleep(0.001)
        server.service.stopping = True
        assert http.get("/health").status_code == 503
        assert http.post("/v1/completions", json=asked()).status_code == 503
        server.engine.cancel_all()
        for t in threads:
            t.join(20)
        assert len(ended) == 3
        assert all("error" in parts[-1] or parts[-1]["choices"][0]["finish_reason"] for parts in ended)


class Where(Drafter):
    """Notes how the decoding thread may run."""

    found: tuple[int, set[int]] = 0, set()

    def grow(self, tree, seqs, limits):
        tasks = [int(t.name) for t in Path("/proc/self/task").iterdir()]
        Where.found = torch.get_num_threads(), set().union(*(os.sched_getaffinity(t) for t in tasks if t not in before))
        return tree


before: set[int] = set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_decoding_does_not_share_the_processor_of_the_thread_that_loaded_the_model():
    """The loading thread is pinned, and a thread that it starts would inherit its one processor."""
    count = torch.get_num_threads()
    try:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        pin()
        before.update(int(t.name) for t in Path("/proc/self/task").iterdir())
        with serving(drafter=Where()) as server, client(server) as http:
            assert http.post("/v1/completions", json=asked()).status_code == 200
        threads, places = Where.found
        assert threads == torch.get_num_threads() and len(places) == threads
    finally:
        release()
        torch.set_num_threads(count)
