"""Whatever is sent to the server gets an answer that is no failure and says nothing about the
inside.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from attacks import Shot, large, shots
from clients import Answer, fire, fire_all, revealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from support.served import address, quiet, serving

from longdraft.server.http.guard import Guard
from longdraft.server.openai.responses import ResponsesRequest
from longdraft.server.openai.schema import ChatRequest, CompletionRequest

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1e308, -1, 1 << 64]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = sorted(
    {n for c in (ChatRequest, CompletionRequest, ResponsesRequest) for n in c.model_fields}
    | {"tools", "x"}
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)
GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "a b", "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}


@pytest.mark.full
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(GOOD)), BODIES, st.booleans())
def test_whatever_is_sent_gets_an_answer_that_is_no_failure(http, path, body, valid):
    """Half of them begin as a good request."""
    content = json.dumps((GOOD[path] | {"model": "tiny"} if valid else {}) | body)
    response = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code < 500, response.text
    assert response.status_code == 200 or set(response.json()["error"]) == {
        "message",
        "type",
        "param",
        "code",
    }


def said_inside(answers: list[Answer]) -> list[str]:
    return [f"{a.shot.kind}: {word}" for a in answers for word in revealed(a)]


@pytest.mark.full
def test_malformed_requests_get_answers_that_reveal_nothing(server):
    """Of broken HTTP, odd JSON, 10 MB, chunks without end, paths, headers and more; hypothesis
    covers fields above.
    """
    found = list(fire_all(address(server), 500, seed=7))
    assert {a.shot.kind for a in found} == {a.shot.kind for a in map(Answer, shots(500, 0))}
    assert [(a.shot.kind, a.bad) for a in found if a.bad] == [] and said_inside(found) == []
    assert {a.status for a in found} == {None, 200, 400, 404, 405, 413, 415, 431}
    assert quiet(server) and server.engine.failure is None


@pytest.mark.parametrize(
    "body",
    [
        b"/usr/lib/x",
        b"KeyError: 1",
        b"<class 'int'>",
        b"at 0x7f00aabbccdd",
        b'File "app.py"',
        b"says torch",
    ],
)
def test_what_reveals_something_is_noticed(body):
    assert revealed(Answer(Shot("x", b"GET /"), 400, {}, body))
    assert (
        Answer(Shot("x", b""), 500).bad
        and Answer(Shot("x", b""), 503).bad
        and Answer(Shot("x", b""), None).bad
    )


async def unbounded(self: Guard, scope: Scope, receive: Receive, send: Send) -> None:
    await self.app(scope, receive, send)


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
def test_large_bodies_are_refused_however_they_come(fault, monkeypatch):
    if fault:
        monkeypatch.setattr(Guard, "_bounded", unbounded)
    with serving() as server:
        found = {fire(address(server), large(Random(seed), 0)).status for seed in range(6)}
    assert (found == {413}) is not fault
