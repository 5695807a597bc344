"""The server under load: overload, clients that leave, failures, signals; and that nothing is left
afterward.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serve_table
from attacks import request
from clients import crowd, drip, fire_all, leave_in_mid_stream, post, stream
from hostile_table import table
from server_process import ServerProcess
from steps_after import StepsAfter
from support.served import TEXT, address, asked, chunks, client, loaded, quiet, serving, url_of

from longdraft import Sampler, Session
from longdraft.bench.records import read_records
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import EnteringPrompt, RowPool
from longdraft.server import uvicorn_server
from longdraft.server.decode.answer import Answer
from longdraft.server.decode.decoding_thread import DecodingThread
from longdraft.server.decode.work import RequestWork
from longdraft.server.http.connection import Connection
from longdraft.server.http.problems import Problem
from longdraft.server.uvicorn_server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.mark.full
def test_a_full_queue_answers_429():
    with serving(session={"batch": 1, "queue": 1}) as server, ThreadPoolExecutor(8) as pool:

        def ask(i: int) -> httpx.Response:
            with client(server) as http:
                return http.post("/v1/completions", json=asked(max_tokens=100, seed=i))

        found = list(pool.map(ask, range(8)))
        codes = [r.status_code for r in found]
        assert set(codes) == {200, 429} and all(
            r.headers["Retry-After"] for r in found if r.status_code == 429
        )
        assert quiet(server)


@pytest.mark.full
def test_free_rows_are_not_a_queue():
    """Simultaneous requests find all rows of an idle server, and the queue behind them."""
    with serving(session={"batch": 4, "queue": 1}) as server, ThreadPoolExecutor(5) as pool:
        body = asked(max_tokens=100)
        codes = list(
            pool.map(
                lambda i: post(address(server), "/v1/completions", body | {"seed": i})[0], range(5)
            )
        )
        assert codes == [200] * 5
        with client(server) as http:
            assert http.post("/v1/completions", json=body | {"n": 5}).status_code == 200
            # which it never has room for
            assert http.post("/v1/completions", json=body | {"n": 6}).status_code == 400


@pytest.mark.timing
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(server, stream):
    before = server.engine.session.stats.emitted
    body = json.dumps(asked(stream=stream, max_tokens=250)).encode()
    host, port = url_of(server).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as s:
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"  # noqa: E501
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        if stream:
            s.recv(1000)
        else:
            while not server.engine.open:
                time.sleep(0.001)
    assert quiet(server) and server.engine.session.stats.emitted - before < 250


@pytest.mark.full
def test_a_request_that_takes_too_long_ends():
    with (
        serving(request_s=0.3, queue_s=0.2, session={"batch": 1}) as server,
        client(server) as http,
    ):
        body = asked(max_tokens=250, n=4)
        response = http.post("/v1/completions", json=body)
        assert response.status_code == 503 and "within" in response.json()["error"]["message"]
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            assert "within" in chunks(stream)[-1]["error"]["message"]
        assert quiet(server)


# Many clients, and clients that leave -------------------------------------------------------------


def overloaded(clients: int = 60, session: dict[str, int] | None = None) -> Counter[str]:
    """What so many clients get that come at once to a short queue and come back when they are told
    to.
    """
    with serving(client_requests=256, session=session) as server:
        found = crowd(address(server), clients, clients, 8)[1]
        assert quiet(server)
    return found


@pytest.mark.full
def test_overload_answers_everybody():
    found = overloaded()
    assert found["200"] == 60 and found["429"] and set(found) == {"200", "429"}


@pytest.mark.full
def test_an_answer_without_retry_after_is_noticed(monkeypatch):
    monkeypatch.setattr(Problem, "headers", {})
    # so short a queue is full however slowly the clients come
    assert overloaded(40, {"batch": 1, "queue": 1})["429 without Retry-After"]


def all_ended(watch: StepsAfter, most_s: float) -> bool:
    """Whether the rows of all requests that were given up are free, soon: the last event comes
    after the row was taken out.
    """
    deadline = time.monotonic() + most_s
    while watch.open and time.monotonic() < deadline:
        time.sleep(0.01)
    return not watch.open


def left(server: Server, count: int) -> StepsAfter:
    """Let so many clients leave in mid-stream; nothing of them is left."""
    session = server.engine.session
    with StepsAfter().watching(server) as watch, ThreadPoolExecutor(8) as pool:
        assert set(
            pool.map(lambda i: leave_in_mid_stream(address(server), i, 200), range(count))
        ) == {200}
        assert quiet(server, 5), "requests run although their clients have left"
        assert all_ended(watch, 5), "a request that was given up has no last event"
    assert watch.ended >= count // 2, "the server has not seen that clients left"
    assert watch.most <= 2, "work went on"
    assert (
        session.running == session.needed == 0
        and session.prefixes is not None
        and session.prefixes.used <= 1
    )
    return watch


@pytest.mark.full
@pytest.mark.timing
def test_clients_that_leave_leave_nothing(server):
    left(server, 50)


async def lost_by_python_3_11(answer: Answer, queue: asyncio.Queue, waiting: bool) -> Any:
    """As its `wait_for` does where the event has come."""
    try:
        return await queue.get()
    except asyncio.CancelledError:
        return queue.get_nowait()


@pytest.mark.parametrize("fault", [False, True])
def test_a_client_may_leave_just_when_an_event_comes(server, fault, monkeypatch):
    """Its answer would wait for further events, of which there are none, until its time is over."""
    if fault:
        monkeypatch.setattr(Answer, "_next", lost_by_python_3_11)
    answer = Answer(server.service, RequestWork([[5]], 1, Sampler(), [0], 1, [], (), None), [], [])

    async def leave() -> bool:
        queue = asyncio.Queue[Any]()
        waiting = asyncio.ensure_future(answer._next(queue, False))
        await asyncio.sleep(0)
        queue.put_nowait((0, None))
        waiting.cancel()
        await asyncio.wait({waiting})
        return waiting.cancelled()

    assert asyncio.run(leave()) != fault


@pytest.mark.full
@pytest.mark.whole
@pytest.mark.parametrize("fault", ["not cancelled", "cancelled late"])
def test_work_for_clients_that_left_is_noticed(fault, monkeypatch):
    with serving(session={"queue": 64}) as server:
        if fault == "not cancelled":
            monkeypatch.setattr(
                DecodingThread, "forget", lambda self, stream: self._streams.pop(stream.id, None)
            )
        else:
            turn = iter(range(1 << 30))
            at_once = server.engine.session._end_cancelled
            server.engine.session._end_cancelled = lambda: (
                at_once() if next(turn) % 9 == 0 else None
            )
        with pytest.raises(AssertionError, match=r"left|work went on"):
            left(server, 8)


@pytest.mark.full
def test_slow_clients_are_not_waited_for(monkeypatch):
    ways = "silent", "headers", "body"
    with serving(client_s=0.5) as server, ThreadPoolExecutor(len(ways)) as pool:
        assert None not in pool.map(lambda how: drip(address(server), how, 8), ways)
        monkeypatch.setattr(Connection, "close_if_stuck", lambda self, most_s: None)
        # the check can fail
        assert set(pool.map(lambda how: drip(address(server), how, 1.5), ways)) == {None}


@pytest.mark.full
@pytest.mark.timing
def test_a_client_that_does_not_read_is_not_waited_for(monkeypatch):
    made = Connection.connection_made

    def small(self: Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(Connection, "connection_made", small)
    with serving(client_s=0.5) as server, socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(address(server))
        body = asked(n=8, max_tokens=200, logprobs=20, stream=True)
        s.sendall(request("/v1/completions", json.dumps(body).encode()))
        while not server.engine.open:
            time.sleep(0.001)
        deadline = time.monotonic() + 20
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.server_state.connections and quiet(server)


@pytest.mark.timing
@pytest.mark.parametrize("fault", [False, True])
def test_idle_connections_keep_nobody_out(fault, monkeypatch):
    monkeypatch.setattr(uvicorn_server, "CONNECTIONS", 12)
    if fault:
        monkeypatch.setattr(Connection, "owed", False)
    with serving() as server, contextlib.ExitStack() as opened:
        for _ in range(30):
            opened.enter_context(socket.create_connection(address(server)))
        with client(server) as http:
            assert http.get("/health").status_code == (503 if fault else 200)


def test_small_writes_are_not_held_back(server):
    with client(server) as http:
        http.get("/health")
        for connection in server.server_state.connections:
            place = connection.transport.get_extra_info("socket")
            assert place.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.timing
def test_short_texts_do_not_wait_for_long_ones(server):
    lock = server.service._one_long
    loop = server.engine._loop
    assert loop is not None
    with ThreadPoolExecutor(1) as pool, client(server) as http:
        asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(10)
        long = pool.submit(post, address(server), "/tokenize", {"prompt": "a b " * 20_000})
        assert http.post("/tokenize", json={"prompt": TEXT}).status_code == 200
        time.sleep(0.3)
        assert not long.done()
        loop.call_soon_threadsafe(lock.release)
        assert long.result()[0] == 200


# Ends ---------------------------------------------------------------------------------------------


def test_a_cancelled_request_ends_even_if_nothing_runs():
    """One that waits leaves nothing to step for."""
    engine = DecodingThread(Session(loaded()[0], batch=1, slots=64))
    delivered = []
    engine._loop = SimpleNamespace(
        call_soon_threadsafe=lambda call, events: delivered.extend(events)
    )  # type: ignore[assignment]
    stream = engine.submit(prompt=[5], max_new_tokens=2)
    engine.cancel_all()
    engine._step()
    assert [(e.id, e.ended) for e in delivered] == [(stream.id, "cancelled")]


class Beginning(RowPool):
    """Whose entering prompt begins to run whenever someone looks at it."""

    def __init__(self) -> None:
        self.requests = []
        self.looks = iter([EnteringPrompt(Request(1, [5], 3, 0, (), Sampler()), 0, 0, 0)])

    reading = property(lambda self: next(self.looks, None))  # type: ignore[assignment]


def test_a_look_at_a_row_that_begins_to_run_cannot_fail():
    """/metrics is answered by another thread."""
    assert Beginning().needed == 4
    assert Beginning().entering is not None


@pytest.mark.timing
@pytest.mark.full
@pytest.mark.weekly
def test_a_process_survives_ends_and_leaves_nothing(tmp_path):
    """Memory after malformed requests; SIGTERM while streams run. benchmarks/hostile.py has the
    full counts.
    """
    with ServerProcess(tmp_path, "--grace-seconds", "0.5", "--max-new-tokens", "1900") as server:
        for seed in (1, 2):
            before = server.rss_mb
            assert [a.bad for a in fire_all(server.address, 300, seed) if a.bad] == []
        assert (
            server.settle()
            and server.rss_mb < 1.1 * before
            and server.open_files < 40
            and server.errors == 0
        )
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(stream, server.address, 1900 if i % 2 else 20) for i in range(8)]
            time.sleep(0.5)
            server.send(signal.SIGTERM)
            assert server.process.wait(30) == 0
            ends = [f.result() for f in running]
        assert (
            all(e.proper for e in ends)
            and any(e.error for e in ends)
            and any(e.finish for e in ends)
        )
        assert server.written == [] and server.errors == 0


def test_the_speed_table_is_from_the_record():
    root = Path(__file__).parents[2]
    records = [
        r for _, r in read_records(root / "benchmarks/records/2026-11-23-serve-paced.jsonl.gz")
    ]
    page = (root / "docs" / "server.md").read_text(encoding="utf-8")
    assert serve_table.table(records) in page
    records[0]["batch_gain"] += 0.1
    assert serve_table.table(records) not in page


def test_the_table_of_the_page_is_from_the_record():
    root = Path(__file__).parents[2]
    ((_, record),) = read_records(next(root.glob("benchmarks/records/*-hostile.jsonl.gz")))
    page = (root / "docs" / "server.md").read_text(encoding="utf-8")
    assert table(record) in page
    record["fuzz"]["bad_count"] = 1
    assert table(record) not in page


@pytest.mark.weekly
@pytest.mark.full
def test_the_benchmark_of_attacks_runs(tmp_path):
    words = ["--requests", "200", "--clients", "32", "--disconnects", "20", "--soak", "5"]
    script = Path(__file__).parents[2] / "benchmarks" / "hostile.py"
    command = [sys.executable, str(script), "--out", str(tmp_path / "out.jsonl"), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    found = json.loads((tmp_path / "out.jsonl").read_text())
    fuzz = found["fuzz"]
    ended = found["signals"]
    assert fuzz["bad_count"] == fuzz["tracebacks"] == 0 and fuzz["revealed"] == []
    assert fuzz["slow_closed"] == fuzz["slow_clients"] and abs(fuzz["rss_change"]) < 0.1
    assert set(found["overload"]["answers"]) == {"200", "429"}
    assert found["disconnects"]["most_steps_after"] <= 2 and found["disconnects"]["left_open"] == 0
    assert (ended["status"], ended["second_status"], ended["written"]) == (0, 1, [])
    assert ended["ended_properly"] == ended["streams"] and ended["second_signal_s"] < 2
    assert (
        found["soak"]["settled"]
        and found["soak"]["rows_after"] == found["soak"]["slots_after"] == 0
    )
    assert all(how.endswith((": fine", ": 200", ": proper")) for how in found["soak"]["outcomes"])


class Held:
    """Spells its first token only once another request has been answered; `free`: whether that came
    in time.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self.asked = threading.Event()
        self.answered = threading.Event()
        self.free = list[bool]()

    def word(self, token: int) -> bytes:
        if not self.free:
            self.asked.set()
            self.free.append(self.answered.wait(self.most_s))
        return str(token).encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", [False, True])
def test_log_probabilities_are_written_beside_other_requests(server, monkeypatch, stream, fault):
    """Written in the event loop, they would hold up every other answer."""

    async def at_once(size: int, call: Any, *arguments: Any) -> Any:
        return call(*arguments)

    held = Held(0.3 if fault else 60)
    monkeypatch.setattr(server.service, "word", held.word)
    if fault:
        monkeypatch.setattr(server.service, "aside", at_once)
    body = asked(
        prompt=[1 + i % 50 for i in range(20)], echo=True, logprobs=20, max_tokens=0, stream=stream
    )
    with ThreadPoolExecutor(1) as pool, client(server) as http:
        asking = pool.submit(lambda: client(server).post("/v1/completions", json=body))
        assert held.asked.wait(60)
        assert http.get("/health").status_code == 200
        held.answered.set()
        assert asking.result().status_code == 200
    assert held.free == [not fault]


def test_an_answer_of_too_many_log_probabilities_is_refused(server):
    with client(server) as http, pytest.MonkeyPatch.context() as patch:
        patch.setattr("longdraft.server.decode.service.MOST_LOGPROBS", 100)
        found = http.post("/v1/completions", json=asked(logprobs=20))
        assert (
            found.status_code == 400 and "ask for fewer tokens" in found.json()["error"]["message"]
        )
        assert http.post("/v1/completions", json=asked(logprobs=1)).status_code == 200
