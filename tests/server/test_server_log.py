"""The server's log: a line for each request and refusal, that says what it cost and nothing of what
it contained.
"""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attacks import Shot, request
from clients import fire
from support.served import TEXT, address, asked, client, quiet, serving

from longdraft import InputError
from longdraft.drafters import Drafter
from longdraft.server.http import server_log
from longdraft.server.http.access import Access
from longdraft.server.http.server_log import LOG, check, logging_to, say
from longdraft.server.uvicorn_server import Server

START = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) ")


@contextmanager
def logged(
    level: str = "info", form: str = "json", **settings: Any
) -> Iterator[tuple[Server, list[Any]]]:
    """A server, and the lines of its log, which are complete when it has ended."""
    stream = io.StringIO()
    lines = list[Any]()
    with logging_to(level, form, stream), serving(**settings) as server:
        yield server, lines
    text = stream.getvalue().splitlines()
    lines += [json.loads(line) for line in text] if form == "json" else text


def of(lines: list[dict], message: str) -> list[dict]:
    return [line for line in lines if line["message"] == message]


@pytest.mark.full
def test_a_request_is_a_line_with_what_its_answer_says():
    with logged() as (server, lines), client(server) as http:
        whole = http.post("/v1/completions", json=asked(n=2))
        chat = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}
        streamed = http.post("/v1/chat/completions", json=chat | {"stream": True})
        talked = http.post(
            "/v1/responses", json={"model": "tiny", "input": "a", "max_output_tokens": 5}
        )
        for path in ("/health", "/metrics", "/v1/models"):
            assert http.get(path).headers["x-request-id"]
        assert quiet(server)
    first, second, third, models = of(lines, "request")
    body = whole.json()
    usage = whole.json()["usage"]
    assert first["id"] == body["id"] == whole.headers["x-request-id"]
    assert (first["prompt_tokens"], first["new_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert first["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    details = usage["completion_tokens_details"]
    assert round(first["mean_acceptance_length"], 4) == details["mean_acceptance_length"]
    assert (first["choices"], first["finish"], first["status"]) == (2, "length", 200)
    assert 0 < first["first_token_s"] < 60 and first["tokens_per_s"] > 0
    assert (second["method"], second["path"]) == ("POST", "/v1/chat/completions")
    assert (
        second["id"]
        == json.loads(streamed.text.split("data: ")[1])["id"]
        == streamed.headers["x-request-id"]
    )
    assert third["id"] == talked.json()["id"] and models["path"] == "/v1/models"
    assert [line["message"] for line in lines[:1] + lines[-1:]] == [
        f"serving tiny at {http.base_url!s}/v1",
        "ended",
    ]


def test_a_client_that_leaves_is_a_line():
    with logged() as (server, lines), client(server) as http:
        with http.stream(
            "POST", "/v1/completions", json=asked(stream=True, max_tokens=250)
        ) as response:
            next(response.iter_lines())
        assert quiet(server)
    [line] = of(lines, "request")
    assert line["finish"] == "abort" and line["new_tokens"] < 250


@pytest.mark.full
def test_a_client_may_name_its_request():
    with logged() as (server, lines), client(server) as http:
        for name, taken in (("ab-1.c_D", True), ("a b", False), ("x" * 65, False), ("a=b", False)):
            answer = http.post("/v1/completions", json=asked(), headers={"X-Request-Id": name})
            assert (
                (answer.headers["x-request-id"] == name)
                == taken
                == answer.json()["id"].endswith(name)
            )
    assert of(lines, "request")[0]["id"] == "cmpl-ab-1.c_D"


def test_nothing_that_was_sent_is_logged():
    secrets = ["sesame", "walk(path)", "tulip", "violet"]
    with logged(keys=(b"sesame",)) as (server, lines), client(server) as http:
        headers = {"Authorization": "Bearer sesame"}
        # the name of a field that is ignored is logged, its value is not
        answers = [http.post("/v1/completions", json=asked(unknown="tulip"), headers=headers)]
        refused = [{"model": "tulip"}, {"prompt": TEXT * 100}, {"seed": "violet"}]
        answers += [
            http.post("/v1/completions", json=asked(**more), headers=headers) for more in refused
        ]
        answers += [
            http.get("/v1/models?key=violet"),
            http.get("/v1/models", headers={"Authorization": "tulip"}),
        ]
    reasons = ["model_not_found", "context_length_exceeded", "invalid_request_error"]
    reasons += ["invalid_api_key"] * 2
    assert [line["reason"] for line in of(lines, "refused")] == reasons
    text = json.dumps(lines)
    assert not [
        secret
        for secret in [*secrets, answers[0].json()["choices"][0]["text"].strip()[:20]]
        if secret in text
    ]


class Quoting(Drafter):
    """Fails with a message that quotes its request."""

    def grow(self, tree, seqs, limits):
        raise RuntimeError(f"cannot draft after {seqs.tokens[0, :3].tolist()}")


def test_our_errors_are_logged_without_their_messages():
    with logged(drafter=Quoting()) as (server, lines), client(server) as http:
        assert http.post("/v1/completions", json=asked(prompt=[5, 7, 9])).status_code == 500
    [line] = of(lines, "failed")
    assert (
        line["error"] == "RuntimeError"
        and "grow" in line["traceback"][-1]
        and "[5, 7, 9]" not in str(lines)
    )
    assert [line["level"] for line in of(lines, "refused")] == ["error"]


def forging(server: Server) -> None:
    """Send what could look like lines and fields of a log."""
    forged = "2026-01-01T00:00:00.000Z INFO ended exit_status=0"
    for path in (f"/a\n{forged}", f"/a {forged}", "/a%0a%0d status=200", "/\u2028x", "/\x1b[2J"):
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: a\x0bb\r\n\r\n"
        fire(address(server), Shot("forged", head.encode()))
    fire(
        address(server),
        Shot("forged", request("/v1/models/" + "%0a" * 9, method="GET status=200 ")),
    )


def test_no_client_can_write_a_line():
    with logged(form="text") as (server, lines):
        forging(server)
    assert all(START.match(line) and line.isascii() and line.isprintable() for line in lines), lines
    assert sum(" ended " in line for line in lines) == 1 and not any(
        " status=200" in line for line in lines
    )


def written(form: str = "text") -> list[str]:
    stream = io.StringIO()
    with logging_to("info", form, stream):
        say(
            logging.INFO,
            "a\nmessage \x1b[1m",
            path="/x\n2026 y=1 z=2\x85\u2028",
            count=3,
            share=1 / 3,
            none=None,
        )
    return stream.getvalue().splitlines()


def test_control_characters_are_escaped(monkeypatch):
    [line] = written()
    assert (
        START.sub("", line)
        == r"a\nmessage \x1b[1m path=/x\n2026\x20y=1\x20z=2\x85\u2028 count=3 share=0.3333"
    )
    assert json.loads(written("json")[0])["count"] == 3
    monkeypatch.setattr(server_log, "safe", lambda text, spaces=False: text)
    assert len(written()) > 1  # the check can fail


def refused(most: int) -> tuple[int, list[dict]]:
    """How many lines a hundred refusals are, and the lines that count the others."""
    with logged() as (server, lines), client(server) as http:
        server.access.most = most
        for _ in range(100):
            assert http.get("/nothing").status_code == 404
        fire(address(server), Shot("malformed", b"\x00\x01\r\n\r\n"))
    return len(of(lines, "refused")), of(lines, "more refused")


@pytest.mark.full
def test_many_refusals_do_not_flood():
    count, [others] = refused(10)
    assert count == 10 and (others["count"], others["status_404"], others["status_400"]) == (
        91,
        90,
        1,
    )
    assert others["client"] == "127.0.0.1"
    assert refused(1000) == (101, [])  # the check can fail


def test_clients_that_are_counted_apart_are_bounded(monkeypatch):
    monkeypatch.setattr("longdraft.server.http.access.MOST_CLIENTS", 5)
    access = Access(lambda *_: None, most=1, window_s=0)  # type: ignore[arg-type]
    stream = io.StringIO()
    with logging_to("warning", "text", stream):
        for i in range(50):
            access.refused(f"client-{i}", 429, reason="x")
        assert len(access.refusals) == 6
        access.report()
    assert access.refusals == {} and "client=others count=44 status_429=44" in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "seen"), [("error", []), ("info", ["request", "refused"]), ("warning", ["refused"])]
)
def test_levels(level, seen):
    with logged(level) as (server, lines), client(server) as http:
        http.get("/v1/models")
        http.get("/nothing")
    assert [line["message"] for line in lines if line["message"] in ("request", "refused")] == seen
    assert not LOG.handlers


@pytest.mark.parametrize(
    ("level", "form", "named"), [("debug", "text", "--log-level"), ("info", "xml", "--log-format")]
)
def test_a_level_or_format_that_does_not_exist_is_one_line(level, form, named):
    with pytest.raises(InputError, match=f"^{named} is '.*': give .* or "):
        check(level, form)


class Stuck(io.StringIO):
    """Nobody reads it for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()  # type: ignore[assignment]

    def write(self, text: str) -> int:
        self.read.wait(20)  # type: ignore[attr-defined]
        return super().write(text)


@pytest.mark.timing
def test_a_reader_that_does_not_read_holds_up_no_answer(monkeypatch):
    monkeypatch.setattr(server_log, "MOST_LINES", 20)
    stream = Stuck()
    with logging_to("info", "json", stream), serving() as server, client(server) as http:
        begin = time.monotonic()
        assert {http.get("/v1/models").status_code for _ in range(100)} == {200}
        assert time.monotonic() - begin < 10
        stream.read.set()  # type: ignore[attr-defined]
        while "lines were lost" not in stream.getvalue():
            time.sleep(0.01)
    assert (
        70
        < json.loads(next(x for x in stream.getvalue().splitlines() if "lost" in x))["count"]
        < 90
    )
