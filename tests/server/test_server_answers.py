"""The server over real HTTP: its answers are those of `generate`, and its streams say the same."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.listed import read_in_any_parts
from support.served import NEW, TEXT, asked, chunks, client, loaded, quiet, said, tokens_of

from longdraft import Rules, Sampler
from longdraft.models.chat import chat_tokens
from longdraft.models.text import text_of
from longdraft.ops import row_seed
from longdraft.server.decode.answer import Answer


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"temperature": 0}, Sampler()),
        ({}, Sampler(1.0)),
        (
            {"temperature": 0.7, "top_p": 0.9, "top_k": 30, "min_p": 0.02},
            Sampler(0.7, 30, 0.9, 0.02),
        ),
        (
            {"frequency_penalty": 1.1, "presence_penalty": -0.3},
            Sampler(1.0, frequency=1.1, presence=-0.3),
        ),
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
    assert (
        found["usage"]["completion_tokens"]
        == NEW
        == found["usage"]["total_tokens"] - len(tokens_of(TEXT))
    )


def test_a_chat_is_read_by_the_template(http):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "import "},
                {"type": "text", "text": "os <assistant>"},
            ],
        },
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "import os <assistant>"},
    ]
    body = {
        "model": "tiny",
        "messages": messages,
        "max_completion_tokens": NEW,
        "seed": 3,
        "ignore_eos": True,
    }
    found = http.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["message"]["content"] == said(chat_tokens(loaded()[1], plain))
    assert (
        found["object"] == "chat.completion"
        and found["choices"][0]["message"]["role"] == "assistant"
    )


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
    with http.stream(
        "POST", path, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *parts, last = chunks(response)
    assert last["choices"] == [] and all(part["usage"] is None for part in parts)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][k] for k in counts] == [whole["usage"][k] for k in counts]
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert mine[-1]["finish_reason"] == choice["finish_reason"] and not any(
            p["finish_reason"] for p in mine[:-1]
        )
        if "chat" in path:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert (
                "".join(p["delta"].get("content", "") for p in mine) == choice["message"]["content"]
            )
            logprobs = [x for p in mine for x in (p["logprobs"] or {"content": []})["content"]]
            assert logprobs == (choice["logprobs"] or {"content": []})["content"]
        else:
            assert "".join(p["text"] for p in mine) == choice["text"]
            for key in (
                ("tokens", "token_logprobs", "top_logprobs", "text_offset")
                if choice["logprobs"]
                else ()
            ):
                assert [x for p in mine for x in p["logprobs"][key]] == choice["logprobs"][key]


def test_a_response_is_the_chat(http):
    messages = [{"role": "user", "content": TEXT}]
    chat = {"model": "tiny", "messages": messages, "max_tokens": NEW, "seed": 3, "ignore_eos": True}
    text = http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    body = {"model": "tiny", "input": TEXT, "max_output_tokens": NEW, "seed": 3, "ignore_eos": True}
    found = http.post("/v1/responses", json=body).json()
    assert found["output"][0]["content"][0]["text"] == text and found["status"] == "incomplete"
    assert found["usage"]["output_tokens"] == NEW
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        found["output"][0],
    ]
    more = http.post(
        "/v1/responses", json=body | {"input": [*history, {"role": "user", "content": "on"}]}
    ).json()
    assert more["usage"]["input_tokens"] > found["usage"]["input_tokens"]
    with http.stream("POST", "/v1/responses", json=body | {"stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    kinds = lines[::2]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [f"event: {e['type']}" for e in events] == kinds
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == text
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["content"] == found["output"][0]["content"]
    assert events[-1]["response"]["usage"]["output_tokens"] == NEW


@pytest.mark.full
def test_choices_are_rows_of_generate(http):
    found = http.post("/v1/completions", json=asked(n=3)).json()["choices"]
    assert [c["text"] for c in found] == [
        said(tokens_of(TEXT), seed=row_seed(3, i)) for i in range(3)
    ]


def test_stop_strings_end_the_text_and_are_not_in_it(http):
    whole = said(tokens_of(TEXT))
    stop = whole[7:10]
    found = http.post("/v1/completions", json=asked(stop=stop)).json()
    assert (
        found["choices"][0]["text"] == whole[: whole.index(stop)]
        and found["choices"][0]["finish_reason"] == "stop"
    )
    assert found["usage"]["completion_tokens"] < NEW


def test_echo_with_logprobs_scores_a_text(http):
    """As evaluation harnesses ask: the log-probability of every prompt token after the first."""
    ids = tokens_of(TEXT)
    found = http.post(
        "/v1/completions", json=asked(prompt=ids, echo=True, logprobs=1, max_tokens=0)
    ).json()
    logprobs = found["choices"][0]["logprobs"]
    assert (
        found["choices"][0]["text"] == text_of(loaded()[1], ids)
        and found["usage"]["completion_tokens"] == 0
    )
    assert (
        len(logprobs["tokens"])
        == len(logprobs["token_logprobs"])
        == len(logprobs["top_logprobs"])
        == len(ids)
    )
    assert logprobs["token_logprobs"][0] is None and all(
        x < 0 for x in logprobs["token_logprobs"][1:]
    )
    assert all(
        max(top.values()) >= p
        for p, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
    )


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"n": 3, "logprobs": 0}], ids=str)
def test_an_echo_without_new_tokens_has_none(http, more):
    """With and without a stream: the prompt, its log-probabilities if asked for, and a usage of
    nothing new.
    """
    body = asked(echo=True, max_tokens=0, **more)
    before = counted(http)
    whole = http.post("/v1/completions", json=body).json()
    with http.stream(
        "POST",
        "/v1/completions",
        json=body | {"stream": True, "stream_options": {"include_usage": True}},
    ) as r:
        *parts, last = chunks(r)
    for usage in (whole["usage"], last["usage"]):
        assert usage["completion_tokens"] == 0 and usage["total_tokens"] == len(tokens_of(TEXT))
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert "".join(p["text"] for p in mine) == choice["text"] == TEXT
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "length"
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            scored = [x for p in mine for x in (p["logprobs"] or {key: []})[key]]
            assert len(scored) == (len(tokens_of(TEXT)) if "logprobs" in more else 0)
            assert scored == (choice["logprobs"] or {key: []})[key]
        assert choice["logprobs"] == whole["choices"][0]["logprobs"]
    assert counted(http) == before


def counted(http) -> list[str]:
    """What the metrics say of new tokens."""
    return [
        line
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("vllm:generation_tokens_total")
    ]


async def hasty(self, i, stream, queue, came) -> None:
    """A choice that does not wait for the first one."""
    async for event in stream:
        queue.put_nowait((i, event))


@pytest.mark.parametrize("broken", [False, True])
def test_every_choice_of_a_stream_echoes_the_log_probabilities(server, http, monkeypatch, broken):
    """The first choice has them, and choices that end in the same step end in any order."""
    assert quiet(server)
    time.sleep(0.05)  # until the decoding thread waits
    wake = server.engine._work.set
    # all at once
    monkeypatch.setattr(
        server.engine._work, "set", lambda: wake() if server.engine.open == 3 else None
    )
    if broken:
        monkeypatch.setattr(Answer, "_read", hasty)
    with http.stream(
        "POST", "/v1/completions", json=asked(echo=True, logprobs=1, max_tokens=0, n=3, stream=True)
    ) as r:
        parts = chunks(r)
    scored = [0] * 3
    for choice in (p["choices"][0] for p in parts):
        scored[choice["index"]] += len((choice["logprobs"] or {"top_logprobs": []})["top_logprobs"])
    assert (scored == [len(tokens_of(TEXT))] * 3) != broken


@read_in_any_parts
def test_a_known_prefix_is_counted_and_changes_nothing(http):
    long = TEXT * 6
    first, second = (http.post("/v1/completions", json=asked(prompt=long)).json() for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"] == said(tokens_of(long))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_usage_says_how_drafting_went(http):
    details = http.post("/v1/completions", json=asked(prompt=TEXT * 6, max_tokens=64)).json()[
        "usage"
    ]["completion_tokens_details"]
    assert (
        details["draft_steps"] > 0
        and 0 <= details["accepted_draft_tokens"] <= details["drafted_tokens"]
    )
    assert details["mean_acceptance_length"] == pytest.approx(
        1 + details["accepted_draft_tokens"] / details["draft_steps"], abs=1e-3
    )


def check_metrics(found: dict, new_tokens: int) -> None:
    """What AIPerf requires of `metrics.speculative_decoding`: the fields of vLLM 0.29 and later,
    which agree.
    """
    m = found["metrics"]["speculative_decoding"]
    steps, accepted, drafted = (
        m[k] for k in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    histogram = m["acceptance_histogram"]
    assert len(histogram) == m["num_spec_tokens"] + 1 and sum(histogram) == steps > 0
    assert sum(n * count for n, count in enumerate(histogram)) == accepted <= drafted
    assert m["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert m["draft_acceptance_rate"] == pytest.approx(accepted / drafted)
    details = found["usage"]["completion_tokens_details"]
    assert (details["draft_steps"], details["accepted_draft_tokens"]) == (steps, accepted)
    # a token of the target's own with each; the first step does not draft
    assert accepted + steps <= new_tokens


@pytest.mark.full
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_has_the_metrics_of_vllm(http, path):
    body = asked(prompt=TEXT * 6, max_tokens=64)
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    whole = http.post(path, json=body).json()
    check_metrics(whole, 64)
    with http.stream(
        "POST", path, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    ) as response:
        *parts, last = chunks(response)
    check_metrics(last, 64)
    assert last["metrics"] == whole["metrics"] and not any("metrics" in part for part in parts)
    assert http.post(path, json=body | {"n": 2}).json()["metrics"] is None
    broken = whole | {
        "metrics": {
            "speculative_decoding": whole["metrics"]["speculative_decoding"] | {"num_spec_steps": 1}
        }
    }
    with pytest.raises(AssertionError):
        check_metrics(broken, 64)


@pytest.mark.full
def test_eight_clients_get_what_each_gets_alone(server):
    """Every other client talks; all of them write a special token, which is text."""
    texts = [TEXT * (1 + i % 3) + f"    print({i}, '<|endoftext|>')\n" for i in range(8)]

    def ask(i: int) -> str:
        body = asked(seed=i, temperature=i % 3 / 2)
        with client(server) as http:
            if i % 2:
                return http.post("/v1/completions", json=body | {"prompt": texts[i]}).json()[
                    "choices"
                ][0]["text"]
            del body["prompt"]
            body["messages"] = [{"role": "user", "content": texts[i]}]
            return http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"][
                "content"
            ]

    def alone(i: int) -> str:
        messages = [{"role": "user", "content": texts[i]}]
        prompt = tokens_of(texts[i]) if i % 2 else chat_tokens(loaded()[1], messages)
        return said(prompt, Sampler(i % 3 / 2), i)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert together == [alone(i) for i in range(8)]


def test_the_other_paths(http):
    assert http.get("/health").status_code == 200
    models = http.get("/v1/models").json()
    assert (
        models["data"][0]["id"] == "tiny"
        and http.get("/v1/models/tiny").json() == models["data"][0]
    )
    tokens = http.post("/tokenize", json={"prompt": TEXT}).json()
    assert tokens["tokens"] == tokens_of(TEXT) and tokens["count"] == len(tokens["tokens"])
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": TEXT}
    metrics = http.get("/metrics").text
    for name in (
        "num_requests_running",
        "generation_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    ):
        assert f"vllm:{name}" in metrics


PENALIZED = {
    "/v1/completions": lambda p: (
        asked(temperature=0) | ({} if p is None else {"repetition_penalty": p})
    ),
    "/v1/chat/completions": lambda p: {
        "model": "tiny",
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": NEW,
        "temperature": 0,
        "ignore_eos": True,
        **({} if p is None else {"repetition_penalty": p}),
    },
    "/api/generate": lambda p: {
        "model": "tiny",
        "prompt": TEXT,
        "raw": True,
        "stream": False,
        "options": {
            "temperature": 0,
            "num_predict": NEW,
            **({} if p is None else {"repeat_penalty": p}),
        },
    },
}


def said_in(answer: dict) -> str:
    """The text of an answer of any of these interfaces."""
    if "response" in answer:
        return answer["response"]
    [choice] = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.full
@pytest.mark.parametrize("path", PENALIZED)
def test_a_penalty_that_is_sent_replaces_the_models(http, path, monkeypatch):
    """And 1 turns it off; one that is not sent leaves the model's, 1.3."""
    lm, tokenizer = loaded()
    monkeypatch.setattr(lm.hf.generation_config, "repetition_penalty", 1.3)
    messages = [{"role": "user", "content": TEXT}]
    prompt = chat_tokens(tokenizer, messages) if "chat" in path else tokens_of(TEXT)
    said_with = {
        p: said(
            prompt,
            Sampler(rules=Rules((("repetition_penalty", p),) if p != 1 else ())),
            eos=None if "api" in path else (),
        )
        for p in (1.0, 1.1, 1.3, 1.69)
    }
    assert len(set(said_with.values())) > 2
    for sent, applied in ((None, 1.3), (1.0, 1.0), (1.1, 1.1), (1.3, 1.3)):
        answer = http.post(path, json=PENALIZED[path](sent)).json()
        assert said_in(answer) == said_with[applied], sent


@pytest.mark.full
@pytest.mark.parametrize("keys", [["7", "07"], ["007"], ["-1"], ["7.0"]])
def test_biases_name_each_token_once(http, keys):
    found = http.post("/v1/completions", json=asked(logit_bias=dict.fromkeys(keys, 5)))
    assert found.status_code == 400 and "logit_bias" in found.json()["error"]["message"]
