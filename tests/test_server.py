"""The server over real HTTP: its answers are those of `generate`, its streams say the same, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import TEXT, chunks, client, loaded, serving, url_of

from longdraft import Sampler, generate
from longdraft.drafters import Drafter
from longdraft.models.chat import chat_tokens
from longdraft.models.loading import token_ids
from longdraft.models.text import text_of
from longdraft.ops import row_seed
from longdraft.ops.threads import pin, release
from longdraft.server.responses import ResponsesRequest
from longdraft.server.run import Server
from longdraft.server.schema import ChatRequest, CompletionRequest

HUGE = "9" * 5000
NEW = 24


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with client(server) as found:
        yield found


def asked(**more: Any) -> dict:
    return {"model": "tiny", "prompt": TEXT, "max_tokens": NEW, "seed": 3, "ignore_eos": True} | more


def said(prompt: list[int], sampler: Sampler | None = None, seed: int = 3, eos: Any = (), new: int = NEW) -> str:
    """What `generate` says."""
    lm, tokenizer = loaded()
    [tokens] = generate(lm, [prompt], max_new_tokens=new, sampler=sampler or Sampler(1.0), seed=seed, eos=eos)
    return text_of(tokenizer, tokens)


def tokens_of(text: str) -> list[int]:
    return token_ids(loaded()[1], text)


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"temperature": 0}, Sampler()),
        ({}, Sampler(1.0)),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 30, "min_p": 0.02}, Sampler(0.7, 30, 0.9, 0.02)),
        ({"frequency_penalty": 1.1, "presence_penalty": -0.3}, Sampler(1.0, frequency=1.1, presence=-0.3)),
        ({"logit_bias": {"70": 4.5, "9": -100}}, Sampler(1.0, bias=((9, -100.0), (70, 4.5)))),
        ({"repetition_penalty": 1.3}, Sampler(1.0, penalty=1.3, window=1 << 31)),
    ],
    ids=str,
)
def test_a_completion_is_what_generate_gives(http, fields, sampler):
    found = http.post("/v1/completions", json=asked(**fields)).json()
    assert found["choices"][0]["text"] == said(tokens_of(TEXT), sampler)
    assert found["choices"][0]["finish_reason"] == "length" and found["object"] == "text_completion"
    assert found["usage"]["prompt_tokens"] == len(tokens_of(TEXT))
    assert found["usage"]["completion_tokens"] == NEW == found["usage"]["total_tokens"] - len(tokens_of(TEXT))


def test_a_chat_is_read_by_the_template(http):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "import "}, {"type": "text", "text": "os <assistant>"}]},
    ]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "import os <assistant>"}]
    body = {"model": "tiny", "messages": messages, "max_completion_tokens": NEW, "seed": 3, "ignore_eos": True}
    found = http.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["message"]["content"] == said(chat_tokens(loaded()[1], plain))
    assert found["object"] == "chat.completion" and found["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "more", [{}, {"stop": ["\n\n", "retu"]}, {"n": 3, "logprobs": True, "top_logprobs": 2}], ids=str
)
def test_a_stream_says_the_same(http, path, more):
    body = asked(**more)
    if "chat" in path:
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": TEXT}]
    elif "logprobs" in body:
        del body["top_logprobs"]
        body["logprobs"] = 2
    whole = http.post(path, json=body).json()
    with http.stream("POST", path, json=body | {"stream": True, "stream_options": {"include_usage": True}}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *parts, last = chunks(response)
    assert last["choices"] == [] and all(part["usage"] is None for part in parts)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][k] for k in counts] == [whole["usage"][k] for k in counts]
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert mine[-1]["finish_reason"] == choice["finish_reason"] and not any(p["finish_reason"] for p in mine[:-1])
        if "chat" in path:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(p["delta"].get("content", "") for p in mine) == choice["message"]["content"]
            logprobs = [x for p in mine for x in (p["logprobs"] or {"content": []})["content"]]
            assert logprobs == (choice["logprobs"] or {"content": []})["content"]
        else:
            assert "".join(p["text"] for p in mine) == choice["text"]
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if choice["logprobs"] else ():
                assert [x for p in mine for x in p["logprobs"][key]] == choice["logprobs"][key]


def test_a_response_is_the_chat(http):
    messages = [{"role": "user", "content": TEXT}]
    chat = {"model": "tiny", "messages": messages, "max_tokens": NEW, "seed": 3, "ignore_eos": True}
    text = http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    body = {"model": "tiny", "input": TEXT, "max_output_tokens": NEW, "seed": 3, "ignore_eos": True}
    found = http.post("/v1/responses", json=body).json()
    assert found["output"][0]["content"][0]["text"] == text and found["status"] == "incomplete"
    assert found["usage"]["output_tokens"] == NEW
    history = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, found["output"][0]]
    more = http.post("/v1/responses", json=body | {"input": [*history, {"role": "user", "content": "on"}]}).json()
    assert more["usage"]["input_tokens"] > found["usage"]["input_tokens"]
    with http.stream("POST", "/v1/responses", json=body | {"stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    kinds, events = lines[::2], [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [f"event: {e['type']}" for e in events] == kinds
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == text
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["content"] == found["output"][0]["content"]
    assert events[-1]["response"]["usage"]["output_tokens"] == NEW


@pytest.mark.parametrize(
    "change",
    [
        {"previous_response_id": "resp_1"},
        {"store": True},
        {"tools": [{"type": "web_search"}]},
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


def test_choices_are_rows_of_generate(http):
    found = http.post("/v1/completions", json=asked(n=3)).json()["choices"]
    assert [c["text"] for c in found] == [said(tokens_of(TEXT), seed=row_seed(3, i)) for i in range(3)]


def test_stop_strings_end_the_text_and_are_not_in_it(http):
    whole = said(tokens_of(TEXT))
    stop = whole[7:10]
    found = http.post("/v1/completions", json=asked(stop=stop)).json()
    assert found["choices"][0]["text"] == whole[: whole.index(stop)] and found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] < NEW


def test_echo_with_logprobs_scores_a_text(http):
    """As evaluation harnesses ask: the log-probability of every prompt token after the first."""
    ids = tokens_of(TEXT)
    found = http.post("/v1/completions", json=asked(prompt=ids, echo=True, logprobs=1, max_tokens=0)).json()
    logprobs = found["choices"][0]["logprobs"]
    assert found["choices"][0]["text"] == text_of(loaded()[1], ids) and found["usage"]["completion_tokens"] == 0
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(ids)
    assert logprobs["token_logprobs"][0] is None and all(x < 0 for x in logprobs["token_logprobs"][1:])
    assert all(
        max(top.values()) >= p
        for p, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
    )


def test_a_known_prefix_is_counted_and_changes_nothing(http):
    long = TEXT * 6
    first, second = (http.post("/v1/completions", json=asked(prompt=long)).json() for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"] == said(tokens_of(long))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_usage_says_how_drafting_went(http):
    details = http.post("/v1/completions", json=asked(prompt=TEXT * 6, max_tokens=64)).json()["usage"][
        "completion_tokens_details"
    ]
    assert details["draft_steps"] > 0 and 0 <= details["accepted_draft_tokens"] <= details["drafted_tokens"]
    assert details["mean_acceptance_length"] == pytest.approx(
        1 + details["accepted_draft_tokens"] / details["draft_steps"], abs=1e-3
    )


def test_eight_clients_get_what_each_gets_alone(server):
    bodies = [asked(prompt=TEXT * (1 + i % 3) + f"    print({i})\n", seed=i, temperature=i % 3 / 2) for i in range(8)]

    def ask(body: dict) -> str:
        with client(server) as http:
            return http.post("/v1/completions", json=body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, bodies))
    assert together == [said(tokens_of(b["prompt"]), Sampler(b["temperature"]), b["seed"]) for b in bodies]


def test_the_other_paths(http):
    assert http.get("/health").status_code == 200
    models = http.get("/v1/models").json()
    assert models["data"][0]["id"] == "tiny" and http.get("/v1/models/tiny").json() == models["data"][0]
    tokens = http.post("/tokenize", json={"prompt": TEXT}).json()
    assert tokens["tokens"] == tokens_of(TEXT) and tokens["count"] == len(tokens["tokens"])
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": TEXT}
    metrics = http.get("/metrics").text
    for name in ("num_requests_running", "generation_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"):
        assert f"vllm:{name}" in metrics


# Refusals ------------------------------------------------------------------------------------------------------------


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
        ({"temperature": 2.1}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 9}, 400, "n"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"stop": ["a" * 257]}, 400, "stop"),
        ({"stop": ""}, 400, "stop"),
        ({"logit_bias": {"x": 1.0}}, 400, "logit_bias"),
        ({"logit_bias": {"999999": 1.0}}, 400, None),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"seed": 1 << 63}, 400, "seed"),
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


# Overload, disconnects, ends -----------------------------------------------------------------------------------------


def quiet(server: Server, most_s: float = 10) -> bool:
    """Whether nothing runs or waits, soon."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        if not server.engine.open and not server.engine.session.running and not server.engine.session.waiting:
            return True
        time.sleep(0.01)
    return False


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
