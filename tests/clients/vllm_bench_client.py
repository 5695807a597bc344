"""vLLM's `vllm bench serve`: a short load of chat and text; it shows how drafts were accepted
without an option.

The command itself does not start in vLLM's build for CPUs, whose package has another name: its
function is called.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import GIVEN, MODEL, URL, check, equal, metric

COUNT = 6
NEW = 24
PROGRAM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def measured(backend: str, path: str, *more: str) -> tuple[Any, str]:
    """The figures of a load, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-c",
            PROGRAM,
            "--backend",
            backend,
            "--endpoint",
            path,
            "--base-url",
            URL,
        ]
        words += [
            "--model",
            MODEL,
            "--tokenizer",
            GIVEN["tokenizer"],
            "--dataset-name",
            "random",
            "--seed",
            "1",
        ]
        words += [
            "--random-input-len",
            "60",
            "--random-output-len",
            str(NEW),
            "--num-prompts",
            str(COUNT),
        ]
        words += [
            "--ignore-eos",
            "--save-result",
            "--result-dir",
            folder,
            "--result-filename",
            "found.json",
            *more,
        ]
        found = subprocess.run(words, capture_output=True, text=True, timeout=200)
        report = Path(folder, "found.json")
        assert report.exists(), (found.stdout + found.stderr)[-600:]
        return json.loads(report.read_text()), found.stdout


def good(backend: str, path: str) -> None:
    """Its figures of drafts are those of the server's metrics."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    before = [metric(f"vllm:spec_decode_num_{name}_total") for name in names]
    found, printed = measured(backend, path)
    after = [metric(f"vllm:spec_decode_num_{name}_total") for name in names]
    equal(
        [found["completed"], found["failed"], found["total_output_tokens"]], [COUNT, 0, COUNT * NEW]
    )
    figures = ("num_drafts", "draft_tokens", "accepted_tokens")
    differences = [int(b - a) for a, b in zip(before, after, strict=True)]
    equal([found[f"spec_decode_{name}"] for name in figures], differences)
    drafts, _, accepted = differences
    assert drafts and abs(found["spec_decode_acceptance_length"] - 1 - accepted / drafts) < 1e-6
    assert "Acceptance length" in printed


@check
def chat():
    good("openai-chat", "/v1/chat/completions")


@check
def completion():
    good("openai", "/v1/completions")


@check
def bad_input():
    """Requests for a model that is not there fail, and the load ends."""
    found, _ = measured(
        "openai",
        "/v1/completions",
        "--served-model-name",
        "other",
        "--ready-check-timeout-sec",
        "0",
    )
    equal([found["completed"], found["failed"]], [0, COUNT])
