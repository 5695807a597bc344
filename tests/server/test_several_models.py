"""Several models in one server: each answers what it answers alone, with a queue, a cache and
metrics of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from support import tiny
from support.served import NEW, TEXT, asked, client, loaded, said, tokens_of
from test_server_answers import counted

from longdraft import Sampler, Session, build, generate
from longdraft.cli.serve import names_of
from longdraft.errors import InputError
from longdraft.models.text import text_of
from longdraft.server.models import Models
from longdraft.server.uvicorn_server import Served, Server, ServerSettings


def other() -> tuple:
    """A model with other weights, and the tokenizer of the first."""
    return tiny.target("llama-loops"), loaded()[1]


@contextmanager
def both() -> Iterator[Server]:
    lm, tokenizer = loaded()
    second, _ = other()
    sessions = [Session(m, build("lookup", m), batch=2, slots=256, queue=16) for m in (lm, second)]
    settings = ServerSettings("tiny", "lookup", port=0, most_new=128)
    server = Server(
        sessions[0],
        tokenizer,
        settings,
        others=[Served(sessions[1], tokenizer, "second", "lookup")],
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with both() as found:
        yield found


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with client(server) as found:
        yield found


def ids() -> list[int]:
    """A prompt that both models know."""
    return [t % other()[0].vocab for t in tokens_of(TEXT)]


def wanted(model: str) -> str:
    lm, tokenizer = loaded() if model == "tiny" else other()
    [tokens] = generate(lm, [ids()], max_new_tokens=NEW, sampler=Sampler(1.0), seed=3, eos=())
    return text_of(tokenizer, tokens)


def ask(http: httpx.Client, model: str) -> str:
    found = http.post("/v1/completions", json=asked(prompt=ids(), model=model))
    assert found.status_code == 200, found.text
    return found.json()["choices"][0]["text"]


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
def test_each_model_answers_what_it_answers_alone(http, fault, monkeypatch):
    """Also while the other one decodes."""
    if fault:
        monkeypatch.setattr(Models, "of", lambda self, name: self.first)
    names = ["tiny", "second"] * 4
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: ask(http, name), names))
    assert (found == [wanted(name) for name in names]) != fault


def test_models_are_listed_and_others_refused(http):
    listed = http.get("/v1/models").json()["data"]
    assert [m["id"] for m in listed] == ["tiny", "second"] and all(
        m["max_model_len"] == 256 for m in listed
    )
    assert http.get("/v1/models/second").json() == listed[1]
    refused = http.post("/v1/completions", json=asked(model="third"))
    assert refused.status_code == 404 and "'tiny' or 'second'" in refused.json()["error"]["message"]
    assert http.post("/tokenize", json={"model": "third", "prompt": "a"}).status_code == 404
    assert http.get("/tokenizer_info", params={"model": "second"}).status_code == 200
    assert http.get("/tokenizer_info", params={"model": "third"}).status_code == 404


@pytest.mark.timing
def test_metrics_have_each_name_once_and_each_model(http):
    ask(http, "second")
    text = http.get("/metrics").text
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert {'model_name="tiny"', 'model_name="second"'} <= {
        part
        for line in counted(http)
        for part in line.replace("{", ",").replace("}", ",").split(",")
    }


@pytest.mark.timing
def test_one_failure_ends_the_server():
    with both() as server, client(server) as http:
        assert http.get("/health").status_code == 200
        server.models.of("second").engine.failure = RuntimeError("broken")
        with pytest.raises(httpx.HTTPError):
            for _ in range(200):
                assert http.get("/health").status_code == 503
                time.sleep(0.05)


def test_names_are_distinct_and_one_for_each_model():
    assert names_of(["a", "b"], []) == ["a", "b"] and names_of(["a", "a"], ["x", "y"]) == ["x", "y"]
    for models, names in ((["a", "a"], []), (["a", "b"], ["x"]), (["a", "b"], ["x", "x"])):
        with pytest.raises(InputError, match="--name"):
            names_of(models, names)


def test_the_first_model_is_that_of_generate(http):
    body = asked()
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == said(
        tokens_of(TEXT)
    )
