"""What is run on each commit: tests that watch a clock get a second try, and slow parts follow what
changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import changed
import pytest

ROOT = Path(__file__).resolve().parents[2]

# Fails in its first run and passes in its second.
ONCE = """
import pathlib
import pytest

def once(name):
    here = pathlib.Path(__file__).with_name(name)
    if not here.exists():
        here.touch()
        raise AssertionError("busy")

@pytest.mark.timing
def test_of_a_clock():
    once("a clock")
"""
PASSES = "def test_nothing():\n    pass\n"
TOKENS = "\n\ndef test_of_tokens():\n    once('tokens')\n"
ALWAYS = "\n\n@pytest.mark.timing\ndef test_too_slow():\n    raise AssertionError\n"
MARKS = "[pytest]\nmarkers = timing: watches a clock\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("tests", "status", "named"),
    [
        (ONCE, 0, True),
        (ONCE + TOKENS, 1, False),
        (ONCE + ALWAYS, 1, True),
        (PASSES, 0, False),
    ],
    ids=["unstable", "other tests too", "slow twice", "all pass"],
)
def test_only_tests_of_a_clock_get_a_second_run(tests, status, named, tmp_path):
    (tmp_path / "pytest.ini").write_text(MARKS)
    (tmp_path / "test_x.py").write_text(tests)
    words = [
        sys.executable,
        str(ROOT / "tests" / "run.py"),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        ".",
    ]
    # loading them takes longer than the tests
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == status, done.stdout
    assert ("unstable: test_x.py::test_of_a_clock" in done.stdout) == named
    assert "unstable: test_x.py::test_too_slow" not in done.stdout
    assert re.fullmatch(r"these tests took \d+:\d\d", done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (["README.md", "src/longdraft/core/tree.py"], []),
        (["src/longdraft/ops/native/draw.h"], ["haswell", "asan", "products"]),
        (["src/longdraft/ops/native/interface.py"], ["haswell", "asan"]),
        (
            ["src/longdraft/backends/native/step.py"],
            ["haswell", "asan", "gpu_step", "architectures"],
        ),
        (["src/longdraft/backends/features/latent.py"], ["gpu_step", "architectures"]),
        (["src/longdraft/backends/cuda/step.py"], ["gpu", "gpu_step", "architectures"]),
        (["src/longdraft/backends/divided.py"], ["gpu_step", "processes", "architectures"]),
        (["src/longdraft/models/lm.py"], []),
        (["pyproject.toml", "setup.py"], ["haswell", "asan", "kinds", "oldest"]),
        (["src/longdraft/ops/triton/kernels.py"], ["gpu", "gpu_step"]),
        (None, [*changed.PARTS]),
    ],
)
def test_slow_parts_follow_what_changed(files, parts):
    assert changed.needed(files) == parts


def test_what_passed_is_not_run_again(tmp_path, monkeypatch):
    """Only a commit before HEAD counts: neither another branch's, nor what is no commit."""

    def git(*words: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=b", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(text: str) -> str:
        git("commit", "-q", "--allow-empty", "-m", text)
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    first = commit("first")
    git("checkout", "-q", "-b", "other")
    foreign = commit("foreign")
    git("checkout", "-q", "main")
    commit("second")
    file = tmp_path / "passed"
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.setattr(changed, "PASSED", file)
    assert changed.passed() is None
    for text, known in [(first, True), (foreign, False), ("0" * 40, False), ("HEAD", False)]:
        file.write_text(f"{text}\n")
        assert changed.passed() == (text if known else None)


def test_weekly_tests_of_parts_are_there():
    """Each is a file, or a test in one, and each part that is no other program's has some."""
    for test in changed.weekly([*changed.PARTS]):
        file, _, name = test.partition("::")
        assert f"def {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8")
    assert changed.PARTS.keys() - changed.WEEKLY == {"haswell", "asan", "architectures", "oldest"}


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["README.md", "docs/server.md"], []),
        (["src/longdraft/bench/plan/drafts.py"], ["bench"]),
        (["src/longdraft/server/app.py", "tests/cli/test_cli.py"], ["cli", "server"]),
        (["tests/support/listed.py"], [*changed.FULL]),
        (None, [*changed.FULL]),
    ],
)
def test_full_tests_follow_what_changed(files, folders):
    assert changed.folders(files) == folders


def test_every_folder_with_full_tests_can_be_chosen():
    """A folder that the table lacks would only run weekly."""
    tests = ROOT / "tests"
    mark = re.compile(r"mark\.(full|product|each_value)|each_method|import.*\bfull\b")
    marked = {
        path.parent.name
        for path in tests.glob("*/test_*.py")
        if mark.search(path.read_text(encoding="utf-8"))
    }
    assert marked - {"page", "vllm"} <= changed.FULL.keys() <= {p.name for p in tests.iterdir()}
    rooms = {path.name for path in (ROOT / "src" / "longdraft").iterdir()}
    assert set().union(*changed.FULL.values()) <= rooms


def test_files_are_those_since_a_commit(tmp_path, monkeypatch):
    """Also those that are not committed; without git, nothing is known, so everything is run."""
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    assert changed.files(changed.before()) is None

    def git(*words: str, date: str = "2026-01-02T12:00:00Z") -> None:
        who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example", "GIT_COMMITTER_NAME": "a"}
        environment = who | {
            "GIT_COMMITTER_EMAIL": "a@example",
            "GIT_COMMITTER_DATE": date,
            "PATH": "/usr/bin:/bin",
        }
        subprocess.run(
            ["git", *words], cwd=tmp_path, check=True, env=environment, capture_output=True
        )

    git("init")
    for name, date in (("first", "2026-01-01T12:00:00Z"), ("second", "2026-01-02T11:00:00Z")):
        (tmp_path / name).touch()
        git("add", ".")
        git("commit", "-m", name, date=date)
    assert changed.files(changed.before()) == ["second"]
    (tmp_path / "first").write_text("new")
    assert changed.files(changed.before()) == ["first", "second"]
    assert changed.files("no such commit") is None


@pytest.mark.parametrize(
    ("line", "counts"),
    [('dependencies = ["torch>=2.12"]', True), ("[tool.ruff]\nline-length = 90", False)],
)
def test_a_projects_file_counts_for_its_versions(line, counts, monkeypatch, tmp_path):
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    before = '[project]\nname = "a"\n'
    (tmp_path / "pyproject.toml").write_text(before + line)
    answers = {"diff": "pyproject.toml", "show": before}
    monkeypatch.setattr(changed, "git", lambda word, *_: answers[word])
    assert changed.files("a commit") == ["pyproject.toml"] * counts
