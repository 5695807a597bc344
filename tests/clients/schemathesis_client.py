"""Schemathesis: requests made up from /openapi.json, right and wrong ones, and whether answers are
as it says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import KEY, URL, check, equal, metric

HERE = Path(__file__).parent
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]


def fuzzed() -> dict[str, Any]:
    """The report of a run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = [
            str(Path(sys.executable).parent / "schemathesis"),
            "run",
            f"{URL}/openapi.json",
            "--no-color",
        ]
        words += [
            "--header",
            f"Authorization: Bearer {KEY}",
            "--checks",
            ",".join(CHECKS),
            "--continue-on-failure",
        ]
        words += [
            "--max-examples",
            os.environ["CLIENT_EXAMPLES"],
            "--phases",
            "examples,coverage,fuzzing",
        ]
        words += [
            "--workers",
            "2",
            "--seed",
            "1",
            "--report",
            "json",
            "--report-json-path",
            str(report),
        ]
        about = {"SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py"), "PYTHONPATH": str(HERE)}
        found = subprocess.run(
            words, capture_output=True, text=True, cwd=folder, env=os.environ | about
        )
        assert report.exists(), found.stdout[-600:] + found.stderr[-600:]
        return json.loads(report.read_text())


report = fuzzed()


@check
def every_path_was_asked():
    counts = report["operations"]
    assert (
        counts["tested"] == counts["total"] > 0 and not counts["errored"] and not report["errors"]
    ), report["errors"]
    assert report["test_cases"]["generated"] > 5 * counts["total"]


@check
def answers_are_as_documented():
    failed = [f"{f['title']}: {', '.join(f['operations'])}" for f in report["failures"]]
    assert not failed, "; ".join(failed)


@check
def good_requests_were_among_them():
    """Each path has answered some with 200: the document leads to requests that the server
    takes.
    """
    rates = {
        path: sum(phase["accepted"] for phase in found.values())
        for path, found in report["valid_rates"].items()
    }
    assert rates and all(rates.values()), rates


@check
def nothing_runs_on():
    equal(metric("vllm:num_requests_running"), 0.0)
