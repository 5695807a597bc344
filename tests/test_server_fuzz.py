"""Whatever is sent to the server gets an answer that is no failure and says nothing about the inside."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import client, serving

from longdraft.server.responses import ResponsesRequest
from longdraft.server.run import Server
from longdraft.server.schema import ChatRequest, CompletionRequest


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with client(server) as found:
        yield found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1e308, -1, 1 << 64]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {n for c in (ChatRequest, CompletionRequest, ResponsesRequest) for n in c.model_fields} | {"tools", "x"}
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)
GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "a b", "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(GOOD)), BODIES, st.booleans())
def test_whatever_is_sent_gets_an_answer_that_is_no_failure(server, path, body, valid):
    """Half of them begin as a good request."""
    content = json.dumps((GOOD[path] | {"model": "tiny"} if valid else {}) | body)
    with client(server) as http:
        response = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code < 500, response.text
    assert response.status_code == 200 or set(response.json()["error"]) == {"message", "type", "param", "code"}
