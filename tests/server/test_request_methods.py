"""Requests that choose their method: equal answers, the method in a header, and clear refusals."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.served import TEXT, asked, client, loaded, said, serving, tokens_of

from longdraft import Sampler, build
from longdraft.cli.serve import others_of
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.server.uvicorn_server import Server

REPEATED = "for name in names:\n    print(name)\n" * 6  # n-grams of the text are found here
CHOICES = [
    ({}, "lookup"),
    ({"speculative": True}, "lookup"),
    ({"speculative": "lookup"}, "lookup"),
    ({"speculative": False}, "plain"),
    ({"speculative": "plain"}, "plain"),
    ({"speculative.n_max": 0}, "plain"),
    ({"speculative": "suffix"}, "suffix"),
    ({"speculative": "suffix", "speculative.n_max": 1}, "suffix"),
]
PATHS = {
    "/v1/completions": {"prompt": REPEATED},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": REPEATED}]},
    "/v1/responses": {"input": REPEATED},
    "/v1/messages": {"messages": [{"role": "user", "content": REPEATED}]},
}
LIMITS = {"/v1/responses": "max_output_tokens"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    lm, _ = loaded()
    others = {"suffix": build("suffix", lm)}
    with serving(
        "lookup", session={"others": others}, methods=("plain", "suffix"), most_new=64
    ) as found:
        yield found


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_answers_are_equal_whatever_method_a_request_chooses(server, temperature):
    """All choices at once, so rows of different methods share steps."""
    text = said(tokens_of(REPEATED), Sampler(temperature))

    def ask(choice: dict) -> httpx.Response:
        body = asked(prompt=REPEATED, temperature=temperature, **choice)
        return http.post("/v1/completions", json=body)

    with client(server) as http, ThreadPoolExecutor(len(CHOICES)) as pool:
        found = list(pool.map(ask, [choice for choice, _ in CHOICES]))
    for answer, (choice, name) in zip(found, CHOICES, strict=True):
        assert answer.json()["choices"][0]["text"] == text, choice
        assert answer.headers["x-longdraft-method"] == name


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
def test_every_api_takes_the_choice(http, path):
    limit = LIMITS.get(path, "max_tokens")
    body = {"model": "tiny", "seed": 3, "temperature": 0, limit: 24} | PATHS[path]
    answers = {}
    for choice, name in CHOICES:
        found = http.post(path, json=body | choice)
        assert found.headers["x-longdraft-method"] == name, found.text
        answer = found.json()
        kept = [answer.get(key) for key in ("choices", "output", "content")]
        answers[str(choice)] = str(kept).replace(str(answer["id"]), "")
        details = answer["usage"].get("completion_tokens_details")
        if details is not None and name == "plain":
            assert details["drafted_tokens"] == 0 and answer["metrics"] is None
    texts = {answer.partition("'id'")[0] for answer in answers.values()}
    assert len(texts) == 1


def test_drafts_are_no_longer_than_asked(http):
    def deepest(**choice) -> int:
        body = asked(prompt=REPEATED, temperature=0, **choice)
        metrics = http.post("/v1/completions", json=body).json()["metrics"]
        return metrics["speculative_decoding"]["num_spec_tokens"]

    assert deepest(**{"speculative.n_max": 2}) == 2 < deepest()


@pytest.mark.parametrize("path", [*PATHS, "/api/generate"])
def test_a_method_that_is_not_allowed_is_refused_by_name(http, path):
    body = {"model": "tiny", "speculative": "vegas"} | PATHS.get(path, {})
    if path == "/api/generate":
        body = {"model": "tiny", "prompt": TEXT, "options": {"speculative": "vegas"}}
    found = http.post(path, json=body)
    assert found.status_code == 400
    assert "'vegas' is not allowed here: use one of lookup, plain, suffix" in found.text


@pytest.mark.full
def test_a_server_may_refuse_plain_decoding():
    with serving("lookup", methods=()) as found, client(found) as http:
        for choice in ({"speculative": False}, {"speculative.n_max": 0}):
            refused = http.post("/v1/completions", json=asked(**choice))
            assert refused.status_code == 400 and "use one of lookup" in refused.text
        assert http.post("/v1/completions", json=asked(speculative=True)).status_code == 200


@pytest.mark.parametrize("value", [{"speculative": 1}, {"speculative.n_max": -1}])
def test_values_of_another_kind_are_refused(http, value):
    assert http.post("/v1/completions", json=asked(**value)).status_code == 400


def test_ollamas_options_have_the_choice(http):
    for options, name in (({"speculative": False}, "plain"), ({"speculative.n_max": 3}, "lookup")):
        body = {"model": "tiny", "prompt": TEXT, "options": options | {"num_predict": 4}}
        found = http.post("/api/generate", json=body)
        assert found.headers["x-longdraft-method"] == name


def test_infill_has_the_choice(http):
    body = {"input_prefix": "a", "input_suffix": "b", "speculative": "vegas"}
    refused = http.post("/infill", json=body)
    assert refused.status_code == 400


def test_the_list_of_models_has_the_methods(http):
    [model] = http.get("/v1/models").json()["data"]
    assert model["methods"] == ["lookup", "plain", "suffix"]


def test_the_commands_list_of_methods():
    own = MethodSpec("auto", "auto")
    assert list(others_of(None, own)) == ["plain"]
    assert list(others_of("auto, vegas,suffix", own)) == ["vegas", "suffix"]
    with pytest.raises(InputError, match="unknown method 'fast'"):
        others_of("plain,fast", own)
    with pytest.raises(InputError, match="unknown method ''"):
        others_of("", own)


@pytest.mark.full
def test_metrics_name_the_method_that_a_request_used(http):
    def counted(name: str, method: str) -> float:
        labels = f'{{method="{method}",model_name="tiny"}} '
        [value] = [
            line.removeprefix(f"vllm:{name}{labels}")
            for line in http.get("/metrics").text.splitlines()
            if line.startswith(f"vllm:{name}{labels}")
        ] or ["0"]
        return float(value)

    names = (
        "generation_tokens_total",
        "prompt_tokens_total",
        "spec_decode_num_draft_tokens_total",
        "e2e_request_latency_seconds_count",
    )
    for choice, method in CHOICES:
        before = {m: [counted(name, m) for name in names] for m in ("lookup", "plain", "suffix")}
        http.post("/v1/completions", json=asked(prompt=REPEATED, temperature=0, **choice))
        after = {m: [counted(name, m) for name in names] for m in before}
        tokens, prompt, drafted, ended = (
            now - then for now, then in zip(after.pop(method), before.pop(method), strict=True)
        )
        assert after == before
        assert tokens > 0 and prompt > 0 and ended == 1
        assert (drafted > 0) == (method != "plain")


def test_accepted_drafts_are_counted_by_what_proposed_them(http):
    def counted(name: str) -> float:
        prefix = f'{name}{{method="lookup",model_name="tiny"'
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))

    names = ("vllm:spec_decode_num_accepted_tokens_total", "longdraft:accepted_draft_tokens_total")
    before = [counted(name) for name in names]
    http.post("/v1/completions", json=asked(prompt=REPEATED, temperature=0, speculative="lookup"))
    accepted, by_source = (counted(name) - n for name, n in zip(names, before, strict=True))
    assert accepted == by_source > 0
    assert 'source="n-grams"' in http.get("/metrics").text
