"""The example programs run offline, each in a process of its own, and show what they claim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLAIMS = {
    "quickstart": ["equal to plain decoding: True"],
    "streaming": ["|"],
    "sampling": [
        "equal to plain decoding: True",
        "equal with another seed: False",
        "row 1 decoded alone is equal: True",
    ],
    "serving": ["request 1", "length", "request 2 '' cancelled"],
    "own_drafter": ["equal to plain decoding: True"],
}


def test_every_example_is_run():
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == set(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_example_runs(name, tmp_path):
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env=os.environ | offline,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert [claim for claim in CLAIMS[name] if claim not in done.stdout] == []
