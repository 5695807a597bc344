"""vLLM's server with a method, asked by the openai client: the README's commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import VOCAB
from engine import METHODS, mixed, run
from openai import OpenAI
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

READY_S = 180
SIZES = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--block-size", "32"]


def with_tokenizer(folder: str) -> str:
    """The tiny model with one word per token."""
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


def spec(method: str) -> list[str]:
    name, own = METHODS[method]
    given = {
        "method": "custom_class",
        "model": f"longdraft_vllm.{name}",
        "num_speculative_tokens": 4,
    }
    options = {"longdraft": own | {"keyed_noise": True, "pace": "off"}}
    return ["--speculative-config", json.dumps(given), "--additional-config", json.dumps(options)]


@pytest.mark.parametrize("method", ["suffix", "vegas"])
def test_answers_equal_plain_decoding(llama, method, tmp_path):
    requests = mixed(VOCAB, 256)
    for i, r in enumerate(requests):
        r.sampling, r.tokens = (
            {"temperature": 0.6 * (i % 2), "seed": i},
            min(r.tokens, 256 - len(r.prompt)),
        )
    plain = run(llama, None, requests, additional_config={"longdraft": {"keyed_noise": True}})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        with_tokenizer(llama),
    ]
    command += ["--port", str(port)]
    command += [
        *SIZES,
        "--served-model-name",
        "tiny",
        "--per-request-spec-decode-metrics",
        "summary",
        *spec(method),
    ]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        client = ready(f"http://127.0.0.1:{port}/v1", server, tmp_path / "log")

        def ask(r):
            more = {"ignore_eos": True, "return_token_ids": True}
            return client.completions.create(
                model="tiny", prompt=r.prompt, max_tokens=r.tokens, extra_body=more, **r.sampling
            )

        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(ask, requests))
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
    assert [a.choices[0].token_ids for a in answers] == plain.outputs
    found = [
        a.model_dump()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        for a in answers
    ]
    assert sum(found) > 0


def ready(base: str, server: subprocess.Popen, log: Path) -> OpenAI:
    """A client, once the server answers."""
    client = OpenAI(base_url=base, api_key="none", max_retries=0)
    begin = time.monotonic()
    while time.monotonic() - begin < READY_S:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            client.models.list()
            return client
        except Exception:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])
