"""Beside a busy process: threads that wait do not take its processor, and a thread that cannot run
is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import tiny
from test_native_threads import threads as of_threads

from longdraft.core.tree import Tree
from longdraft.models.lm import LM
from longdraft.ops import native, threads

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "longdraft" / "ops" / "native"
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(ROOT / "benchmarks"))
import busy  # noqa: E402
from arguments import status  # noqa: E402

on_linux = pytest.mark.skipif(
    native.library() is None or len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2,
    reason="no native build, not on Linux, or one processor alone",
)


@pytest.fixture
def team(tmp_path):
    """Runs the compiled program with these arguments -> (its exit status, what it printed)."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    words = [
        compiler,
        "-O2",
        "-std=c++17",
        "-fopenmp",
        f"-I{SOURCES}",
        str(SUPPORT / "native_team.cpp"),
    ]
    subprocess.run([*words, "-o", str(tmp_path / "team")], check=True)

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [tmp_path / "team", *arguments], capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.full
def test_the_barrier_and_the_team(team):
    assert team() == (0, "")


@pytest.mark.full
def test_waits_for_a_processor_are_counted(team):
    """Other processes can disturb it, so one of several tries must succeed."""
    assert (0, "") in (team("clock") for _ in range(20))


@pytest.mark.full
@on_linux
@torch.inference_mode()
def test_the_same_bits_beside_a_busy_process_and_the_processors_given_back(monkeypatch):
    """Both threads on one processor, which another process uses: passes then lose a thread and get
    it back.
    """
    for name in threads.AFFINITY:
        monkeypatch.delenv(name, raising=False)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    try:
        lm, [prompt] = LM(tiny.stock("wide"), "wide"), tiny.prompts(1500)
        cache = lm.new_cache(1, 1600)
        tree = Tree.chain(torch.tensor([prompt[-8:]]))
        lm.prefill(prompt[:-8], cache)
        want = lm(tree, cache)
        with of_threads(2), threads.pinned() as done, busy.busy_process(sorted(allowed)[1], 20):
            assert done
            assert all(torch.equal(lm(tree, cache), want) for _ in range(400))
        assert os.sched_getaffinity(0) == set(sorted(allowed)[:2])
    finally:
        threads.release()
        os.sched_setaffinity(0, allowed)


@on_linux
@pytest.mark.full
@pytest.mark.weekly
def test_the_benchmark_prints_a_table_and_writes_records(tmp_path):
    """In a process of its own, because it changes where threads may run."""
    out = tmp_path / "busy.jsonl"
    words = ["--context", "256", "--repeat", "1", "--seconds", "0.02", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    script = [sys.executable, str(ROOT / "benchmarks" / "busy.py")]
    done = subprocess.run([*script, *words], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1) and "busy / quiet" in done.stdout, done.stderr
    records = out.read_text().splitlines()
    assert len(records) == 2 * len(busy.CONFIGURATIONS) * len(busy.OPERATIONS)


@on_linux
def test_the_benchmark_reports_a_mistake_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(busy, "quiet", lambda threads: None)
    assert status(lambda: busy.main(["--rope", "yarn:1"])) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
