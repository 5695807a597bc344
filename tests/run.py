"""Runs pytest with these words; tests with the mark `timing` that fail are run once more, alone.

Such tests watch a clock, sockets or other processes, so a busy machine can fail them. If the second
run passes, the whole passes, and the last lines name the test as unstable. Tests of tokens, numbers
and planted faults run once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

REPORT = ["--durations=10", "--durations-min=1"]


class Failures:
    """The tests that failed: `timing` has those with that mark, `other` the rest and what could not
    be collected.
    """

    def __init__(self) -> None:
        self.timing: list[str] = []
        self.other: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            names = self.timing if "timing" in report.keywords else self.other
            names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.other.append(report.nodeid)


def run(words: list[str]) -> int:
    """Run the tests -> pytest's exit status, and 0 if only unstable tests failed."""
    began = time.monotonic()
    failures = Failures()
    status = int(pytest.main([*words, *REPORT], plugins=[failures]))
    if status == pytest.ExitCode.TESTS_FAILED and failures.timing and not failures.other:
        status = again(list(dict.fromkeys(failures.timing)))
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"these tests took {minutes}:{seconds:02}", flush=True)
    return status


def again(names: list[str]) -> int:
    """Run each of these tests in a process of its own -> 0 if all pass; say which ones are
    unstable.
    """
    passed = [name for name in names if subprocess.run(alone(name)).returncode == 0]
    for name in passed:
        print(f"unstable: {name}")
    return int(passed != names)


def alone(name: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", name]


if __name__ == "__main__":
    # Compiled once: it takes each worker 15 s, and each process that a test starts a second or two.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(run(sys.argv[1:]))
