"""benchmarks/gpu.py from end to end: every part, with tiny shapes and interpreted kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.weekly]  # and when a GPU's code changed
pytest.importorskip(
    "triton", reason="triton is not installed: nothing of the GPU's can be measured"
)

ROOT = Path(__file__).parents[2]


def bench(*words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "benchmarks/gpu.py", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)


def test_every_part_is_measured_and_written_down(tmp_path):
    out = tmp_path / "gpu.jsonl"
    done = bench("--tiny", "--out", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    if any("only 0-dimensional arrays" in r.get("failed", "") for r in rows):
        pytest.skip("this Triton's interpreter does not run with this numpy")
    assert {r["part"] for r in rows} == {
        "errors",
        "same text",
        "memory",
        "steps",
        "bandwidth",
        "generate",
    }
    # which has no CPU kernel
    assert {r["method"] for r in rows if "failed" in r} == {"varlen_attn"}
    assert not [r for r in rows if "skipped" in r]
    assert all(r["error"] < 1e-5 for r in rows if "error" in r) and all(
        r["equal"] for r in rows if "equal" in r
    )
    assert all(
        {"device", "versions", "git_sha", "command", "seed", "time", "run"} <= r.keys()
        for r in rows
    )
    assert len({r["model"] for r in rows if r["part"] == "steps"}) == 2
    table = out.with_suffix(".md").read_text().splitlines()
    # a head and its rule
    assert len([line for line in table if line.startswith("| ")]) == len(rows) + 2


def test_what_does_not_fit_the_time_is_left_out_and_says_so(tmp_path):
    out = tmp_path / "gpu.jsonl"
    assert bench("--tiny", "--minutes", "0", "--out", str(out)).returncode == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows and all("s are left" in r["skipped"] for r in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    done = bench()
    assert (
        done.returncode == 2
        and len(done.stderr.strip().splitlines()) == 1
        and "--tiny" in done.stderr
    )
