"""Settings every test shares, and the table of planted faults at the end of a run."""

from __future__ import annotations

import os
import sys

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


@pytest.fixture(params=[kind for kinds in native.BUILDS.values() for kind in kinds])
def build(request, monkeypatch):
    """Each build of the native kernels in its turn, where this processor runs it."""
    if (library := native.opened(request.param)) is None:
        pytest.skip(f"{request.param} was not built or cannot run on this processor")
    monkeypatch.setattr(native, "library", lambda: library)


def pytest_collection_finish(session) -> None:
    """A minute's work of one core, in a process of its own: it is done beside the other tests."""
    if any("interpreted" in getattr(item, "fixturenames", ()) for item in session.items):
        import test_gpu

        test_gpu.begin()


def pytest_sessionfinish(session) -> None:
    test_gpu = sys.modules.get("test_gpu")
    if test_gpu is not None and test_gpu.RUNNING is not None:
        test_gpu.RUNNING.kill()


def pytest_terminal_summary(terminalreporter) -> None:
    import broken

    if not broken.CAUGHT:
        return
    terminalreporter.section("planted faults, and the checks that caught each")
    width = max(map(len, broken.CAUGHT))
    for fault, checks in broken.CAUGHT.items():
        terminalreporter.write_line(f"{fault:<{width}}  {', '.join(checks)}")
