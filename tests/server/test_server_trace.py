"""The server's traces: two lanes beside other requests, one trace at a time, ended by whoever
leaves first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.served import CHAT, TEXT, chunks, client, loaded, serving

from longdraft import Sampler, generate
from longdraft.methods import METHODS
from longdraft.models.chat import chat_tokens
from longdraft.models.text import text_of, token_ids
from longdraft.ops import native
from longdraft.recording.trace import Round, Trace
from longdraft.sampling_parameters import TRACE
from longdraft.server.uvicorn_server import Server

ASKED = {
    "document": TEXT * 3,
    "prompt": "What is this?",
    "method": "vegas",
    "max_tokens": 16,
    "seed": 3,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if native.library() is not None:
        loaded()[0].quantized("int8")  # as a server has that runs `auto`
    with serving("lookup", session={"slots": 2048}) as found:
        yield found


def events_of(http: httpx.Client, **fields) -> list[dict]:
    with http.stream("POST", "/v1/longdraft/trace", json=ASKED | fields) as response:
        assert response.status_code == 200, response.read()
        return chunks(response)


def trace_of(events: list[dict]) -> Trace:
    """The trace that a stream of events describes, as a page puts it together."""
    [header] = [e["trace"] for e in events if e.get("event") == "begin"]
    for e in events:
        if e.get("event") == "round":
            header["lanes"][e["lane"]].setdefault("rounds", []).append(e["round"])
    last = events[-1]
    assert last["event"] == "end"
    for lane, end in zip(header["lanes"], last["trace"]["lanes"], strict=True):
        lane |= end
    return Trace.model_validate(header | {"equal": last["trace"]["equal"]})


@pytest.mark.full
@pytest.mark.parametrize("method", ["vegas", "vegas-reuse", "auto", "suffix", "fill"])
def test_a_trace_shows_what_generate_gives(http, method):
    trace = trace_of(
        events_of(
            http,
            method=method,
            temperature=0.8,
            top_p=0.9,
            options={"pace": "off"} if method not in ("auto", "fill") else {},
        )
    )
    lm, tokenizer = loaded()
    prompt = chat_tokens(
        tokenizer,
        [{"role": "user", "content": f"{ASKED['document'].strip()}\n\n{ASKED['prompt']}"}],
    )
    [want] = generate(lm, [prompt], max_new_tokens=16, sampler=Sampler(0.8, top_p=0.9), seed=3)
    assert [lane.method for lane in trace.lanes] == ["plain", method] and trace.equal is True
    assert trace.prompt_tokens == len(prompt) and trace.slots == len(prompt) + 16
    for lane in trace.lanes:
        assert [t for r in lane.rounds for t in r.tokens] == want
        assert lane.rounds[0].texts[0] and isinstance(lane.rounds[0], Round)


@pytest.mark.full
def test_a_trace_of_a_model_without_a_template_continues_the_text(http, monkeypatch):
    lm, tokenizer = loaded()
    monkeypatch.setattr(tokenizer, "chat_template", None)
    trace = trace_of(events_of(http, document=""))
    [want] = generate(lm, [token_ids(tokenizer, ASKED["prompt"])], max_new_tokens=16, seed=3)
    assert [t for r in trace.lanes[1].rounds for t in r.tokens] == want
    assert http.get("/v1/longdraft/methods").json()["chat"] is False
    monkeypatch.setattr(tokenizer, "chat_template", CHAT)
    assert http.get("/v1/longdraft/methods").json()["chat"] is True


@pytest.mark.full
def test_other_requests_do_not_notice_a_trace(http):
    lm, tokenizer = loaded()
    prompt = token_ids(tokenizer, TEXT)
    body = {"model": "tiny", "prompt": TEXT, "max_tokens": 24, "ignore_eos": True}
    with ThreadPoolExecutor(3) as pool:
        trace = pool.submit(events_of, http, max_tokens=64)
        others = [
            pool.submit(http.post, "/v1/completions", json=body | {"seed": i}) for i in range(4)
        ]
        for i, other in enumerate(others):
            [want] = generate(lm, [prompt], max_new_tokens=24, sampler=Sampler(1.0), seed=i, eos=())
            assert other.result().json()["choices"][0]["text"] == text_of(tokenizer, want)
        assert trace_of(trace.result()).equal is True


@pytest.mark.full
@pytest.mark.timing
def test_one_trace_at_a_time_and_none_after_its_reader_has_left(http, server):
    with http.stream("POST", "/v1/longdraft/trace", json=ASKED | {"max_tokens": 256}) as first:
        lines = first.iter_lines()
        assert json.loads(next(lines)[6:])["event"] == "begin"
        second = http.post("/v1/longdraft/trace", json=ASKED)
        assert second.status_code == 429 and second.headers["retry-after"]
        assert "another trace" in second.json()["error"]["message"]
    deadline = time.monotonic() + 10
    while server.engine._task is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.engine._task is None
    assert trace_of(events_of(http)).equal is True


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"method": "nothing"}, 400, "unknown method 'nothing'"),
        ({"options": {"gamma": "0"}}, 400, "option gamma is 0"),
        ({"options": {"drafter": "/etc"}}, 400, "no option 'drafter'"),
        ({"method": "longspec"}, 400, "needs a drafter"),
        ({"document": TEXT * 300}, 400, "the prompt has"),
        ({"prompt": None}, 400, "prompt"),
        ({"temperature": "hot"}, 400, "temperature"),
    ],
    ids=str,
)
def test_what_cannot_be_traced_is_refused(http, fields, status, said):
    found = http.post("/v1/longdraft/trace", json=ASKED | fields)
    assert found.status_code == status and said in found.json()["error"]["message"], found.text


NEEDS_COPY = [("vegas", {"draft_weights": "int4"}), ("quantspec", {}), ("auto", {})]


@pytest.mark.skipif(
    native.library() is None, reason="without the native kernels, auto drafts by no copy"
)
@pytest.mark.parametrize(("method", "options"), NEEDS_COPY)
def test_no_copy_of_the_model_is_made_for_a_trace(http, method, options, monkeypatch):
    """It would be made under the model's lock, and stay. One that is there already is used."""
    lm = loaded()[0]
    with monkeypatch.context() as patched:
        patched.setattr(lm, "copies", {})
        found = http.post(
            "/v1/longdraft/trace", json=ASKED | {"method": method, "options": options}
        )
        listed = {m["name"] for m in http.get("/v1/longdraft/methods").json()["methods"]}
        assert found.status_code == 400 and not lm.copies and "vegas" in listed
        said = found.json()["error"]["message"]
        assert (
            f"{method} with these options drafts by a copy of the model in int" in said
            and "\n" not in said
        )
        assert not {"auto", "quantspec"} & listed
    before = set(lm.copies)
    assert (
        trace_of(events_of(http, method="vegas", options={"draft_weights": "int8"})).equal is True
    )
    assert set(lm.copies) == before


def test_a_step_that_fails_ends_the_trace_alone(http, server, monkeypatch):
    from longdraft.recording.race import Race

    def fails(self):
        raise RuntimeError("/secret/path")

    with monkeypatch.context() as patched:
        patched.setattr(Race, "step", fails)
        *_, last = events_of(http)
    assert last["error"]["message"] == "the server could not complete this trace"
    assert trace_of(events_of(http)).equal is True


def test_methods_that_can_be_watched_are_listed(http):
    found = http.get("/v1/longdraft/methods").json()
    names = [m["name"] for m in found["methods"]]
    assert {"vegas", "suffix", "auto"} <= set(names) and not {"plain", "longspec"} & set(names)
    assert found["default"] == "lookup" and found["model"] == "tiny" and found["context"] == 2048
    vegas = found["methods"][names.index("vegas")]
    assert vegas["label"] == METHODS["vegas"].family.label
    assert vegas["options"]["gamma"] == {"default": "7", "about": "a whole number from 1 to 512"}
    assert found["parameters"] == {p.name: p.in_json for p in TRACE}


def test_the_page_can_be_left_out():
    with serving("lookup", page=False) as server, client(server) as http:
        assert http.get("/").status_code == 405  # some clients send HEAD to see whether it is there
        assert http.get("/v1/longdraft/methods").status_code == 404
        assert http.post("/v1/longdraft/trace", json=ASKED).status_code == 404


@pytest.mark.full
def test_the_page_needs_no_key_and_its_traces_do():
    with serving("lookup", keys=[b"right"]) as server, client(server) as http:
        first = http.get("/")
        assert (
            first.status_code == 200
            and "default-src 'none'" in first.headers["content-security-policy"]
        )
        assert http.get("/v1/longdraft/methods").status_code == 401
        assert http.post("/v1/longdraft/trace", json=ASKED).status_code == 401


@pytest.mark.full
def test_a_server_that_stops_ends_its_trace():
    with serving("lookup", session={"slots": 2048}, grace_s=0.1) as server, client(server) as http:
        with http.stream(
            "POST", "/v1/longdraft/trace", json=ASKED | {"max_tokens": 256}
        ) as response:
            lines = (line for line in response.iter_lines() if line)
            assert json.loads(next(lines)[6:])["event"] == "begin"
            server.engine.cancel_all()
            *_, error, done = lines
        assert "ended by the server" in error and done == "data: [DONE]"
