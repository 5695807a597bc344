"""AIPerf: a short benchmark of chat and text, as streams; it shows how drafts were accepted without
an option.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import GIVEN, KEY, MODEL, URL, check, equal, metric

AIPERF = str(Path(sys.executable).parent / "aiperf")
COUNT = 6
NEW = 24


def measured(kind: str, key: str = KEY) -> tuple[Any, str]:
    """The figures of a benchmark, or None, and what was printed."""
    words = [
        AIPERF,
        "profile",
        "--model",
        MODEL,
        "--url",
        URL,
        "--api-key",
        key,
        "--endpoint-type",
        kind,
    ]
    words += ["--streaming"]
    words += [
        "--tokenizer",
        GIVEN["tokenizer"],
        "--request-count",
        str(COUNT),
        "--concurrency",
        "2",
        "--ui",
        "none",
    ]
    words += [
        "--synthetic-input-tokens-mean",
        "60",
        "--output-tokens-mean",
        str(NEW),
        "--random-seed",
        "1",
    ]
    words += ["--extra-inputs", "ignore_eos:true"]
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            [*words, "--artifact-dir", folder], capture_output=True, text=True, timeout=200
        )
        report = Path(folder, "profile_export_aiperf.json")
        return json.loads(
            report.read_text()
        ) if report.exists() else None, found.stdout + found.stderr


def good(kind: str) -> None:
    """Its figures of drafts are those of the server's metrics."""
    names = ("drafts", "accepted_tokens")
    before = [metric(f"vllm:spec_decode_num_{name}_total") for name in names]
    found, printed = measured(kind)
    assert found is not None, printed[-600:]
    equal(found["request_count"]["avg"], COUNT)
    equal(found["usage_completion_tokens"]["avg"], NEW)
    after = [metric(f"vllm:spec_decode_num_{name}_total") for name in names]
    steps, accepted = (b - a for a, b in zip(before, after, strict=True))
    equal(found["total_accepted_draft_tokens"]["avg"], accepted)
    histogram = {
        int(n): steps for n, steps in found["pooled_spec_decode_acceptance_histogram"].items()
    }
    equal(
        [sum(histogram.values()), sum(n * count for n, count in histogram.items())],
        [steps, accepted],
    )
    assert "Acceptance Length" in printed


@check
def chat():
    good("chat")


@check
def completion():
    good("completions")


@check
def bad_input():
    """With a wrong key every request fails, and the benchmark says so."""
    found, printed = measured("completions", "wrong")
    assert found is None and f"All {COUNT} inference request(s) failed" in printed, printed[-600:]
