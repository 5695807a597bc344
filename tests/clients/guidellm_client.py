"""GuideLLM: a short benchmark of each kind of request, as streams, four at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import GIVEN, KEY, MODEL, URL, check, equal, metric

GUIDELLM = str(Path(sys.executable).parent / "guidellm")
COUNT = 24
STREAMS = 4
NEW = 20


def measured(path: str, key: str = KEY) -> Any:
    """The metrics of a benchmark's report."""
    data = f"kind=synthetic_text,prompt_tokens=60,output_tokens={NEW}"
    words = [
        GUIDELLM,
        "run",
        "--disable-console",
        "--tokenizer",
        f"kind=huggingface_auto,model={GIVEN['tokenizer']}",
    ]
    words += [
        "--backend",
        f"kind=openai_http,target={URL},model={MODEL},api_key={key},request_format={path}",
    ]
    words += [
        "--profile",
        f"kind=concurrent,streams={STREAMS}",
        "--constraint",
        f"kind=max_requests,count={COUNT}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words += ["--data", data, "--output", f"kind=json,path={report}"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert found.returncode == 0, found.stderr[-600:]
        return json.loads(report.read_text())["benchmarks"][0]["metrics"]


def good(path: str) -> None:
    """All requests have as many tokens as were asked for, counted by the usage that the server
    sends.

    On a busy machine the report can lack the last request of each stream: it stops before its own
    processes have ended.
    """
    before = metric("vllm:generation_tokens_total")
    found = measured(path)
    totals = found["request_totals"]
    equal([totals["errored"], totals["incomplete"]], [0, 0])
    assert COUNT - STREAMS <= totals["successful"] <= COUNT, totals
    counts = found["output_token_count"]["successful"]
    equal([counts["min"], counts["max"]], [NEW, NEW])
    assert found["time_to_first_token_ms"]["successful"]["min"] > 0
    assert found["inter_token_latency_ms"]["successful"]["mean"] > 0
    assert metric("vllm:generation_tokens_total") - before >= totals["successful"] * NEW
    equal(metric("vllm:num_requests_running"), 0.0)


@check
def chat():
    good("/v1/chat/completions")


@check
def completion():
    good("/v1/completions")


@check
def response():
    good("/v1/responses")


@check
def bad_input():
    """With a wrong key all requests are errors, and the benchmark ends."""
    equal(measured("/v1/completions", "wrong")["request_totals"]["errored"], COUNT)
