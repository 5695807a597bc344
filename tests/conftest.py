"""Settings every test shares, and the table of planted faults at the end of a run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test uses the network

import pytest
import torch
from hypothesis import settings

from longdraft.ops import native

pytest.register_assert_rewrite("checks", "structure")
pytest_plugins = ["place"]

torch.set_num_threads(1)  # beside other work a second thread's barriers cost milliseconds, and tiny models need none
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("suite")


# Builds that lie elsewhere (tests/asan.py), to be tested instead of the installed ones.
if folder := os.environ.get("LONGDRAFT_TEST_BUILDS"):
    native.FOLDER = Path(folder)
RAN, LEFT_OUT = Counter(), Counter()  # tests of each build


@pytest.fixture(params=list(native.NEEDS))
def build(request, monkeypatch):
    """Each build of the native kernels in its turn, where it runs here; the summary counts them."""
    if (library := native.opened(request.param)) is None:
        LEFT_OUT[request.param] += 1
        pytest.skip(native.lacking(request.param))
    RAN[request.param] += 1
    monkeypatch.setattr(native, "library", lambda: library)
    return library


def pytest_collection_finish(session) -> None:
    """A minute's work of one core, in a process of its own: it is done beside the other tests."""
    if any("interpreted" in getattr(item, "fixturenames", ()) for item in session.items):
        import test_gpu

        test_gpu.begin()


def pytest_sessionfinish(session) -> None:
    test_gpu = sys.modules.get("test_gpu")
    if test_gpu is not None and test_gpu.RUNNING is not None:
        test_gpu.RUNNING.kill()


def count_builds(terminalreporter) -> None:
    terminalreporter.section("builds of the native kernels")
    best = next((kind for kind in native.NEEDS if native.opened(kind) is not None), None)
    wish = os.environ.get("LONGDRAFT_NATIVE") or (best[1:] if best else "none")
    terminalreporter.write_line(f"tests that choose none ran on: {wish}")
    for kind in native.NEEDS:
        why = f", {LEFT_OUT[kind]} skipped: {native.lacking(kind)}" if native.opened(kind) is None else ""
        terminalreporter.write_line(f"{kind[1:]:<7} {RAN[kind]} tests ran{why}")


def pytest_terminal_summary(terminalreporter) -> None:
    import broken

    count_builds(terminalreporter)

    if not broken.CAUGHT:
        return
    terminalreporter.section("planted faults, and the checks that caught each")
    width = max(map(len, broken.CAUGHT))
    for fault, checks in broken.CAUGHT.items():
        terminalreporter.write_line(f"{fault:<{width}}  {', '.join(checks)}")
