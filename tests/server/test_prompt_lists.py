"""Several prompts in one completion: each is answered as if it had been sent alone with the same
fields.
"""

from __future__ import annotations

import pytest
from support.served import NEW, TEXT, asked, chunks, client, quiet, serving, tokens_of

from longdraft.server.decode import service

PROMPTS = [TEXT, "def add(a, b):\n", TEXT * 3]


def alone(http, **fields) -> list[dict]:
    """The choices that each prompt gets in a request of its own."""
    return [
        c
        for p in PROMPTS
        for c in http.post("/v1/completions", json=asked(prompt=p, **fields)).json()["choices"]
    ]


def texts(choices: list[dict]) -> list[str]:
    return [c["text"] for c in choices]


@pytest.mark.full
@pytest.mark.parametrize(
    "more", [{}, {"n": 2}, {"n": 2, "echo": True, "logprobs": 1}, {"stop": ["("]}], ids=str
)
def test_every_prompt_is_answered_as_alone(http, more):
    """Whole and as a stream, with the fields of each choice, and a usage that is the sum."""
    wanted = alone(http, **more)
    found = http.post("/v1/completions", json=asked(prompt=PROMPTS, **more)).json()
    assert [c["index"] for c in found["choices"]] == list(range(len(wanted)))
    assert [c | {"index": 0} for c in found["choices"]] == [c | {"index": 0} for c in wanted]
    assert (
        found["usage"]["prompt_tokens"] == sum(len(tokens_of(p)) for p in PROMPTS)
        and found["metrics"] is None
    )
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    with http.stream(
        "POST", "/v1/completions", json=asked(prompt=PROMPTS, **more) | streaming
    ) as response:
        *parts, last = chunks(response)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][k] for k in counts] == [found["usage"][k] for k in counts]
    for choice in found["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert "".join(p["text"] for p in mine) == choice["text"]
        for key in (
            ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            if choice["logprobs"]
            else ()
        ):
            assert [x for p in mine for x in p["logprobs"][key]] == choice["logprobs"][key]


def test_prompts_of_token_ids_are_those_of_texts(http):
    ids = [tokens_of(p) for p in PROMPTS]
    found = [
        http.post("/v1/completions", json=asked(prompt=prompt)).json() for prompt in (PROMPTS, ids)
    ]
    assert texts(found[0]["choices"]) == texts(found[1]["choices"])


@pytest.mark.full
def test_each_prompt_of_a_list_draws_a_seed_of_its_own_where_none_is_given(http, monkeypatch):
    """With a seed, equal prompts have equal answers, as two requests with this seed would."""
    body = asked(prompt=[TEXT] * 3, temperature=2.0)
    assert len(set(texts(http.post("/v1/completions", json=body).json()["choices"]))) == 1
    assert (
        len(set(texts(http.post("/v1/completions", json=body | {"seed": None}).json()["choices"])))
        == 3
    )
    # one seed for all would be noticed
    monkeypatch.setattr(service.secrets, "randbits", lambda bits: 5)
    assert (
        len(set(texts(http.post("/v1/completions", json=body | {"seed": None}).json()["choices"])))
        == 1
    )


def test_a_scored_list_is_scored_as_alone(http):
    """As lm-evaluation-harness asks with a batch size."""
    more = {"echo": True, "logprobs": 1, "max_tokens": 0}
    found = http.post("/v1/completions", json=asked(prompt=PROMPTS, **more)).json()
    assert [c["logprobs"] for c in found["choices"]] == [c["logprobs"] for c in alone(http, **more)]
    assert found["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"prompt": ["a"] * 65}, "64"),
        ({"prompt": ["a"] * 9, "n": 8}, "72 choices"),
        ({"prompt": [TEXT] * 21}, "21 choices"),
        ({"prompt": [TEXT, ""]}, "no tokens"),
        ({"prompt": [TEXT, TEXT * 300]}, "tokens"),
        ({"prompt": []}, "at least 1"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_a_list_that_cannot_be_answered_is_refused_whole(server, http, more, word):
    """21: more than run and wait here together."""
    refused = http.post("/v1/completions", json=asked(**more))
    error = refused.json()["error"]
    assert refused.status_code == 400 and word in error["message"] and error["param"] == "prompt"
    assert quiet(server)


@pytest.mark.parametrize("fault", [False, True])
def test_a_list_is_queued_whole_or_not(fault, monkeypatch):
    """Where only some of its prompts find room, none of them runs."""
    if fault:
        close = "longdraft.server.decode.decoding_thread.Stream.close"
        monkeypatch.setattr(close, lambda self: None)
    with serving(session={"batch": 1, "queue": 4}) as server, client(server) as http:
        # nothing leaves the queue
        monkeypatch.setattr(server.engine.session, "_admit", lambda: None)
        first = [server.engine.submit(prompt=tokens_of(TEXT), max_new_tokens=4) for _ in range(2)]
        refused = http.post("/v1/completions", json=asked(prompt=[TEXT] * 4))
        assert refused.status_code == 429 and refused.headers["Retry-After"]
        assert (server.engine.session.waiting == len(first)) != fault
        for stream in first:
            server.engine.forget(stream)


def test_an_answer_is_as_long_as_its_limit(http):
    found = http.post("/v1/completions", json=asked(prompt=PROMPTS)).json()
    assert found["usage"]["completion_tokens"] == NEW * len(PROMPTS)
