"""Sampling fields that a request does not send: the server's options, the model's, the API's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.served import NEW, TEXT, asked, client, loaded, said, serving, tokens_of
from transformers import GenerationConfig

from longdraft import Sampler
from longdraft.cli import main
from longdraft.errors import InputError
from longdraft.models import recommended
from longdraft.server.decode.sampling_defaults import SamplingDefaults
from longdraft.server.http.server_log import logging_to

MODELS = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.3}
OPTIONS = {"temperature": 1.6, "min_p": 0.01}
MIXED = {"temperature": 1.6, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.3, "min_p": 0.01}
USER = [{"role": "user", "content": TEXT}]
PROMPT = f"<user>{TEXT}\n<assistant>"
EVERYTHING = recommended.EVERYTHING


@pytest.fixture(scope="module", autouse=True)
def recommending() -> Iterator[None]:
    """The bundled model with a recommendation in its generation_config.json."""
    lm, _ = loaded()
    with pytest.MonkeyPatch.context() as patch:
        own = lm.hf.generation_config
        config = GenerationConfig(do_sample=True, eos_token_id=own.eos_token_id, **MODELS)
        patch.setattr(lm.hf, "generation_config", config)
        yield


@pytest.fixture(scope="module")
def http(recommending):
    with serving() as server, client(server) as http:
        yield http


@pytest.fixture(scope="module")
def mixed(recommending):
    with serving(sampling=OPTIONS) as server, client(server) as http:
        yield http


def completion(http: Any, **fields: Any) -> str:
    response = http.post("/v1/completions", json=asked(**fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_a_request_without_settings_is_generate_with_the_recommended_ones(http):
    sampler = recommended.recommended_sampler(loaded()[0])
    assert sampler == Sampler(0.7, top_k=30, top_p=0.9, penalty=1.3, window=EVERYTHING)
    expected = said(tokens_of(TEXT), sampler)
    assert completion(http) == expected
    assert completion(http, temperature=None, top_k=None) == expected
    assert expected != said(tokens_of(TEXT))


def overriding(self: SamplingDefaults, body: Any) -> Any:
    return body.model_copy(update=dict(self.settings))


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
def test_what_a_request_sends_wins(http, fault, monkeypatch):
    """The planted fault: defaults that replace what a request sends."""
    if fault:
        monkeypatch.setattr(SamplingDefaults, "fill", overriding)
    sent = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    expected = said(tokens_of(TEXT), Sampler(2.0, penalty=1.0))
    assert (completion(http, **sent) == expected) != fault
    # the API's own default, when sent, is sent
    expected = said(tokens_of(TEXT), Sampler(1.0, 30, 0.9, penalty=1.3, window=EVERYTHING))
    assert (completion(http, temperature=1.0) == expected) != fault
    greedy = said(tokens_of(TEXT), Sampler(0.0, 30, 0.9, penalty=1.3, window=EVERYTHING))
    assert (completion(http, temperature=0) == greedy) != fault


@pytest.mark.full
def test_options_win_over_the_model_in_every_api(mixed):
    sampler = Sampler(1.6, 30, 0.9, 0.01, penalty=1.3, window=EVERYTHING)
    assert completion(mixed) == said(tokens_of(TEXT), sampler)
    expected = said(tokens_of(PROMPT), sampler, eos=None)
    body = {"model": "tiny", "seed": 3}
    talk = {"messages": USER, "max_tokens": NEW}
    chat = mixed.post("/v1/chat/completions", json=body | talk).json()
    assert chat["choices"][0]["message"]["content"] == expected
    message = mixed.post("/v1/messages", json=body | talk).json()
    assert message["content"][0]["text"] == expected
    given = {"input": TEXT, "max_output_tokens": NEW}
    response = mixed.post("/v1/responses", json=body | given).json()
    assert response["output"][-1]["content"][0]["text"] == expected
    assert response["temperature"] == 1.6 and response["top_p"] == 0.9
    ollama = {"model": "tiny", "stream": False, "options": {"num_predict": NEW, "seed": 3}}
    found = mixed.post("/api/chat", json=ollama | {"messages": USER}).json()
    assert found["message"]["content"] == expected
    found = mixed.post("/api/generate", json=ollama | {"prompt": TEXT}).json()
    assert found["response"] == expected
    raw = mixed.post("/api/generate", json=ollama | {"prompt": TEXT, "raw": True}).json()
    assert raw["response"] == said(tokens_of(TEXT), sampler, eos=None)


@pytest.mark.full
def test_ollamas_fields_win_and_its_defaults_come_last(mixed):
    sent = {"num_predict": NEW, "seed": 3, "temperature": 0.8, "top_k": 40, "repeat_penalty": 1.0}
    body = {"model": "tiny", "stream": False, "messages": USER, "options": sent}
    sampler = Sampler(0.8, 40, 0.9, 0.01, penalty=1.0)
    found = mixed.post("/api/chat", json=body).json()["message"]["content"]
    assert found == said(tokens_of(PROMPT), sampler, eos=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded()[0].hf, "generation_config", GenerationConfig(eos_token_id=0))
        with serving(sampling={"temperature": 1.6}) as server, client(server) as http:
            options = {"num_predict": NEW, "seed": 3}
            found = http.post("/api/chat", json=body | {"options": options}).json()
            expected = said(tokens_of(PROMPT), Sampler(1.6, 40, 0.9), eos=None)
            assert found["message"]["content"] == expected
            # a model without a recommendation: OpenAI's API has no limits
            assert completion(http) == said(tokens_of(TEXT), Sampler(1.6))


def test_the_models_list_and_the_log_have_the_defaults(mixed):
    [model] = mixed.get("/v1/models").json()["data"]
    assert model["sampling_defaults"] == MIXED
    stream = io.StringIO()
    with logging_to("info", "text", stream), serving(sampling=OPTIONS):
        pass
    [line] = [line for line in stream.getvalue().splitlines() if "sampling defaults" in line]
    assert "temperature 1.6 (option), top_k 30 (model), top_p 0.9 (model)" in line
    assert "repetition_penalty 1.3 (model), min_p 0.01 (option), others by API" in line


def test_a_model_that_recommends_nothing_leaves_the_apis_defaults(monkeypatch):
    lm, _ = loaded()
    monkeypatch.setattr(lm.hf, "generation_config", GenerationConfig(do_sample=False, top_k=9))
    assert SamplingDefaults.of(lm, {}) == SamplingDefaults()
    assert str(SamplingDefaults()) == "others by API"


def test_a_recommendation_out_of_range_is_ignored_with_a_line_in_the_log(monkeypatch):
    config = SimpleNamespace(do_sample=True, temperature=0.5, top_p=7.0)
    monkeypatch.setattr(loaded()[0].hf, "generation_config", config)
    stream = io.StringIO()
    with logging_to("info", "text", stream), serving() as server, client(server) as http:
        assert completion(http) == said(tokens_of(TEXT), Sampler(0.5))
    [line] = [line for line in stream.getvalue().splitlines() if "out of range" in line]
    assert "WARNING the model recommends top_p 7.0" in line
    replaced = SamplingDefaults.of(loaded()[0], {"top_p": 0.5})
    assert replaced.settings == {"temperature": 0.5, "top_p": 0.5} and not replaced.unusable
    with pytest.raises(InputError, match=r"top-p is 7\.0"):
        SamplingDefaults.of(loaded()[0], {"top_p": 7.0})


@pytest.mark.parametrize("value", ["warm", [0.5], float("nan"), float("inf"), -1])
def test_odd_recommendations_are_ignored(value, monkeypatch):
    config = SimpleNamespace(do_sample=True, temperature=0.5, top_k=value)
    monkeypatch.setattr(loaded()[0].hf, "generation_config", config)
    defaults = SamplingDefaults.of(loaded()[0], {})
    kept = {"temperature": 0.5} | ({"top_k": 0} if value == -1 else {})
    assert defaults.settings == kept
    assert list(defaults.unusable) == [name for name in ("top_k",) if name not in kept]


@pytest.mark.parametrize(
    "options",
    ["--temperature -1", "--top-p 0", "--top-k -2", "--min-p 1.5", "--penalty 0", "--top-p nan"],
)
def test_bad_options_are_refused_in_one_line(options, capsys):
    assert main(("serve", "-m", "bundled", *options.split())) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert options.split()[0] in line


def test_the_options_reach_the_server(place, monkeypatch):
    from longdraft.server import uvicorn_server

    found: list[Any] = []

    def ready(self: uvicorn_server.Server, sockets: Any = None) -> int:
        found.append(self.settings.sampling)
        for each in sockets:
            each.close()
        return 0

    monkeypatch.setattr(uvicorn_server.Server, "run", ready)
    given = "--temperature 0 --top-k 5 --top-p 0.5 --min-p 0.1 --penalty 1"
    assert main(("serve", "-m", "tiny", "--port", "0", "--method", "plain", *given.split())) == 0
    expected = {"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "penalty": 1}
    assert found == [expected]
