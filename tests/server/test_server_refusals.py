"""The server over real HTTP: what it refuses, by field, body, header, host and key."""

from __future__ import annotations

import errno
import json
import socket
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from attacks import Shot, request
from clients import fire
from support.served import TEXT, address, asked, client, serving
from uvicorn.protocols.http.h11_impl import H11Protocol

from longdraft.server.http import connection
from longdraft.server.http.connection import Connection

HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [1 << 20]}, 400, None),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": ["a", 5]}, 400, "prompt"),
        ({"prompt": "\ud800"}, 400, "prompt"),
        ({"prompt": TEXT * 100}, 400, "prompt"),
        ({"max_tokens": -2}, 400, "max_tokens"),
        ({"max_tokens": 10**30}, 400, "max_tokens"),
        ({"max_tokens": "5"}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": 10001}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 9}, 400, "n"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"stop": ["a" * 257]}, 400, "stop"),
        ({"stop": ""}, 400, "stop"),
        ({"logit_bias": {"x": 1.0}}, 400, "logit_bias"),
        ({"logit_bias": {"999999": 1.0}}, 400, "logit_bias"),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"seed": 1 << 64}, 400, "seed"),
        ({"best_of": 2}, 400, "best_of"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"user": "x" * 1000}, 400, "user"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_bad_field_is_refused_by_name(http, change, status, param):
    content = json.dumps({k: v for k, v in asked(**change).items() if v is not None})
    response = http.post(
        "/v1/completions", content=content, headers={"Content-Type": "application/json"}
    )
    error = response.json()["error"]
    assert response.status_code == status and set(error) == {"message", "type", "param", "code"}
    assert (error["param"] or "").split(".")[0] == (param or "") and len(error["message"]) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "function"}]},
        {"n": 2},
        {"input": []},
        {"background": True},
    ],
    ids=str,
)
def test_a_response_is_stateless_and_drops_nothing(http, change):
    response = http.post("/v1/responses", json={"model": "tiny", "input": "hi"} | change)
    assert response.status_code == 400 and next(iter(change)) in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "field", ["tools", "functions", "guided_json", "audio", "previous_response_id"]
)
def test_what_is_not_supported_is_not_dropped(http, field):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        field: {"type": "json_object"},
    }
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and field in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": NaN}',
        f'{{"seed": {HUGE}}}'.encode(),
    ],
)
def test_a_body_that_is_no_request_is_refused(http, content):
    response = http.post(
        "/v1/completions", content=content, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400 and "error" in response.json()


def test_other_refusals(http, server):
    assert (
        http.post(
            "/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"}
        ).status_code
        == 415
    )
    assert http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert http.get("/v1/completions").status_code == 405
    assert http.post("/v1/completions", json=asked(user="x" * (5 << 20))).status_code == 413

    def slowly() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * (1 << 16)

    headers = {"Content-Type": "application/json"}
    assert http.post("/v1/completions", content=slowly(), headers=headers).status_code == 413
    assert http.get("/health", headers={"X-Big": "x" * 100_000}).status_code in (400, 431)


@pytest.mark.timing
def test_a_body_whose_end_is_ambiguous_is_refused(server):
    """A proxy that reads the other header would take a part of the body for another client's
    request.
    """
    hidden = b"0\r\n\r\n" + request("/v1/models", method="GET")
    both = request("/tokenize", hidden).replace(
        b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1
    )
    with socket.create_connection(address(server), 10) as s:
        s.sendall(both)
        got = b"".join(iter(lambda: s.recv(1 << 16), b""))
    assert (
        got.startswith(b"HTTP/1.1 400 ")
        and b"Transfer-Encoding" in got
        and got.count(b"HTTP/1.1") == 1
    )


@pytest.mark.parametrize("size", [20_000, 70_000, 200_000, 900_000])
def test_large_headers_get_an_answer(server, size):
    """Also where they are refused before their end: the connection is not cut before the client has
    read that.
    """
    answers = [
        fire(address(server), Shot("headers", request("/health", X_Big="x" * size)))
        for _ in range(5)
    ]
    assert [a.status for a in answers] == [431] * 5
    assert all(json.loads(a.body)["error"]["type"] == "invalid_request_error" for a in answers)


def test_a_connection_that_is_cut_is_noticed(server, monkeypatch):
    monkeypatch.setattr(Connection, "send_400_response", H11Protocol.send_400_response)
    assert (
        fire(address(server), Shot("headers", request("/health", X_Big="x" * 900_000))).status
        != 431
    )


@pytest.mark.parametrize("fault", [False, True])
def test_a_client_that_left_before_its_refusal_ended_is_no_error(
    fault, server, monkeypatch, caplog
):
    """Its reset arrives after the refusal was written, and before the server closes its half of the
    connection.
    """

    def reset(self: Connection) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    monkeypatch.setattr(_SelectorSocketTransport, "write_eof", reset)
    if fault:
        monkeypatch.setattr(connection, "suppress", lambda *errors: nullcontext())
    data = request("/health", method="GET") + b"no request\r\n\r\n"
    assert fire(address(server), Shot("broken HTTP", data)).status == 200
    with client(server) as http:
        # whatever the other connection caused has been logged
        assert http.get("/health").status_code == 200
    assert any(line.levelname == "ERROR" for line in caplog.records) == fault


@pytest.mark.timing
def test_what_follows_a_refusal_is_bounded(server):
    with (
        socket.create_connection(address(server), 10) as s,
        pytest.raises(OSError, match=r"reset|pipe"),
    ):
        for _ in range(1000):
            s.sendall(b"x" * (1 << 16))


@pytest.mark.full
def test_keys_hosts_and_a_clients_share():
    with (
        serving(keys=(b"one", b"two"), hosts=("127.0.0.1",), client_requests=2) as server,
        client(server) as http,
    ):
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            assert http.get(path).status_code == 401
        for key, status in (("one", 200), ("two", 200), ("on", 401), ("ones", 401)):
            assert (
                http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code
                == status
            )
        assert http.get("/v1/models", headers={"Authorization": "Basic one"}).status_code == 401
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 421
        headers = {"Authorization": "Bearer one"}
        body = asked(stream=True, max_tokens=200)
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as a:
            with http.stream("POST", "/v1/completions", json=body, headers=headers) as b:
                refused = http.post("/v1/completions", json=asked(), headers=headers)
                assert refused.status_code == 429 and refused.headers["Retry-After"]
                b.read()
            a.read()
