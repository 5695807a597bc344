"""The example programs run offline and show what they claim."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.listed import weekly

ROOT = Path(__file__).parents[2]
CLAIMS = {
    "quickstart": ["equal to plain decoding: True"],
    "streaming": ["|"],
    "sampling": [
        "equal to plain decoding: True",
        "equal with another seed: False",
        "row 1 decoded alone is equal: True",
    ],
    "serving": ["request 1", "length", "request 2 '' cancelled"],
    "in_transformers": ["equal to plain generate: True", "tokens per decoding step"],
    "own_drafter": ["equal to plain decoding: True"],
}


def check(name: str, output: str) -> None:
    assert [claim for claim in CLAIMS[name] if claim not in output] == []


def test_every_example_is_run():
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == set(CLAIMS)


@pytest.mark.full
@pytest.mark.parametrize("name", CLAIMS)
def test_the_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    check(name, capsys.readouterr().out)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=weekly if number else pytest.mark.full)
        for number, name in enumerate(CLAIMS)
    ],
)
@pytest.mark.weekly
def test_the_example_runs_in_a_process_of_its_own(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    check(name, done.stdout)
