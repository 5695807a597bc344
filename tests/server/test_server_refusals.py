"""The server over real HTTP: what it refuses, by field, body, header, host and key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.served import TEXT, asked, client, serving

HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [1 << 20]}, 400, None),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": "\ud800"}, 400, "prompt"),
        ({"prompt": TEXT * 100}, 400, "prompt"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"max_tokens": 257}, 400, "max_tokens"),
        ({"max_tokens": 10**30}, 400, "max_tokens"),
        ({"max_tokens": "5"}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, None),
        ({"temperature": 10001}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 9}, 400, "n"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"stop": ["a" * 257]}, 400, "stop"),
        ({"stop": ""}, 400, "stop"),
        ({"logit_bias": {"x": 1.0}}, 400, "logit_bias"),
        ({"logit_bias": {"999999": 1.0}}, 400, None),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"seed": 1 << 64}, 400, "seed"),
        ({"best_of": 2}, 400, "best_of"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"stream_options": {"include_usage": True}}, 400, None),
        ({"user": "x" * 1000}, 400, "user"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_bad_field_is_refused_by_name(http, change, status, param):
    content = json.dumps({k: v for k, v in asked(**change).items() if v is not None})
    response = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == status and set(error) == {"message", "type", "param", "code"}
    assert (error["param"] or "").split(".")[0] == (param or "") and len(error["message"]) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"previous_response_id": "resp_1"},
        {"store": True},
        {"tools": [{"type": "function"}]},
        {"truncation": "auto"},
        {"n": 2},
        {"input": []},
        {"background": True},
    ],
    ids=str,
)
def test_a_response_is_stateless_and_drops_nothing(http, change):
    response = http.post("/v1/responses", json={"model": "tiny", "input": "hi"} | change)
    assert response.status_code == 400 and next(iter(change)) in response.json()["error"]["message"]


@pytest.mark.parametrize("field", ["tools", "functions", "response_format", "audio", "previous_response_id"])
def test_what_is_not_supported_is_not_dropped(http, field):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], field: {"type": "json_object"}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and field in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": NaN}', f'{{"seed": {HUGE}}}'.encode()],
)
def test_a_body_that_is_no_request_is_refused(http, content):
    response = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and "error" in response.json()


def test_other_refusals(http, server):
    assert http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert http.get("/v1/completions").status_code == 405
    assert http.post("/v1/completions", json=asked(user="x" * (5 << 20))).status_code == 413

    def slowly() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * (1 << 16)

    headers = {"Content-Type": "application/json"}
    assert http.post("/v1/completions", content=slowly(), headers=headers).status_code == 413
    assert http.get("/health", headers={"X-Big": "x" * 100_000}).status_code in (400, 431)


def test_keys_hosts_and_a_clients_share():
    with serving(keys=(b"one", b"two"), hosts=("127.0.0.1",), client_requests=2) as server, client(server) as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            assert http.get(path).status_code == 401
        for key, status in (("one", 200), ("two", 200), ("on", 401), ("ones", 401)):
            assert http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == status
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
