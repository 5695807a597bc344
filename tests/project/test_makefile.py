"""A target of the Makefile whose set-up fails says so in one line, and fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harder import EMULATED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("target", "given", "line"),
    [
        ("test-page", ["CHROMIUM="], "no chromium here"),
        (
            "test-page",
            ["CHROMIUM=/bin/true", "PAGE=.none", "PYTHON=false"],
            "Playwright cannot be installed",
        ),
        ("test-vllm", ["VLLM=.none", "PYTHON=false"], "cannot be installed"),
    ],
)
def test_a_failed_set_up_fails(target, given, line):
    done = subprocess.run(
        ["make", "-s", target, *given], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and f"{target}: " in done.stderr and line in done.stderr
    assert done.stdout == ""  # no test ran


@pytest.mark.full
@pytest.mark.weekly
@pytest.mark.parametrize(
    ("names", "status"), [(EMULATED, 0), ([*EMULATED, EMULATED[1] + "x"], 4)], ids=["all", "stale"]
)
def test_the_tests_that_are_emulated_exist(names, status):
    """Only machines with the emulator run them."""
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", *names]
    assert subprocess.run(words, cwd=ROOT, capture_output=True).returncode == status
