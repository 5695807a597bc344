"""The command `llm`, with this server in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import API, GIVEN, KEY, LONG, MODEL, SAMPLING, TEXT, Skip, check, equal, leaving
from shapes import Order, is_order, only_real

LLM = str(Path(sys.executable).parent / "llm")
KINDS = {  # entries of the list of models, which differ in how they ask
    "chat": {"supports_schema": True, "supports_tools": True},
    "text": {"completion": True},
    "response": {"responses": True, "supports_schema": True},
    "other": {"model_name": "other"},
}
HERE = {"model_name": MODEL, "api_base": API, "api_key_name": "here"}
# JSON is YAML
MODELS = json.dumps([HERE | {"model_id": name} | more for name, more in KINDS.items()])
FUNCTION = """
def add(a: int, b: int) -> int:
    'Add two numbers.'
    return a + b
"""


def words(*more: str, model: str = "chat", **options: Any) -> list[str]:
    pairs = (w for k, v in (SAMPLING | options).items() if v is not None for w in ("-o", k, str(v)))
    return [LLM, "-m", model, "--no-log", *pairs, *more, TEXT]


def said(*more: str, model: str = "chat", **options: Any) -> str:
    found = subprocess.run(
        words(*more, model=model, **options), capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.removesuffix("\n")


def refusal(*more: str, **options: Any) -> str:
    """The one line that the command prints when it fails."""
    found = subprocess.run(words(*more, **options), capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "Traceback" not in found.stderr, found.stderr
    return found.stderr


home = tempfile.TemporaryDirectory()
os.environ |= {"LLM_USER_PATH": home.name, "LLM_LOAD_PLUGINS": ""}
Path(home.name, "extra-openai-models.yaml").write_text(MODELS)
Path(home.name, "keys.json").write_text(json.dumps({"here": KEY}))


@check
def plain():
    equal(said("--no-stream"), GIVEN["chat"])


@check
def stream():
    equal(said(), GIVEN["chat"])


@check
def stop():
    equal(said(stop=GIVEN["stop"]), GIVEN["stopped"])


@check
def seed():
    equal(said(), said())
    assert said(seed=4) != GIVEN["chat"]


@check
def completion():
    equal(said("--no-stream", model="text"), GIVEN["completion"])
    equal(said(model="text"), GIVEN["completion"])


@check
def response():
    """Without a seed, which this API has no field for."""
    greedy = {"temperature": 0, "seed": None}
    equal(said(model="response", **greedy), said(**greedy))


@check
def logprobs():
    raise Skip("the command prints none")


@check
def n():
    raise Skip("the command asks for one answer")


@check
def schema():
    place = Path(home.name, "schema.json")
    place.write_text(json.dumps(Order.model_json_schema()))
    for model, seed in (("chat", 3), ("response", None)):
        for more in ([], ["--no-stream"]):
            found = said("--schema", str(place), *more, model=model, max_tokens=400, seed=seed)
            is_order(Order.model_validate_json(found))


@check
def tools():
    """The model decides; calls and their results go back and forth until it answers."""
    asked = [
        *words("--functions", FUNCTION, "--td", max_tokens=200, temperature=0)[:-1],
        "How much is 17 plus 25?",
    ]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and found.stdout, found.stderr
    only_real()
    assert "Tool call: add" in found.stderr and "42" in found.stdout, found.stdout + found.stderr


@check
def bad_input():
    assert "new tokens" in refusal(max_tokens=1_000_000)
    assert "other" in refusal(model="other")
    assert "API key" in refusal("--key", "wrong")


@check
def disconnect():
    def begin():
        process = subprocess.Popen(words(max_tokens=LONG), stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read(10)

        def leave() -> None:
            process.kill()
            process.wait()

        return leave

    leaving(begin)
    equal(said(), GIVEN["chat"])
