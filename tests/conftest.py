"""Settings every test shares, and the table of planted faults at the end of a run."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test uses the network

import pytest
import torch
from hypothesis import HealthCheck, settings

from longdraft.ops import native

gc.disable()  # until tests are collected: a quarter of that time went into garbage among modules

pytest.register_assert_rewrite("support.checks", "support.structure")
pytest_plugins = ["support.added", "support.place"]
if find_spec("uvicorn"):  # else the server's tests cannot run, and all others can
    pytest_plugins += ["support.served", "support.scripted"]
# last, so that modules of the tests come first
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

# beside other work a second thread's barriers cost milliseconds, and tiny models need none
torch.set_num_threads(1)
# other processes may be busy: nothing here depends on how long an example takes
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


if folder := os.environ.get(
    "LONGDRAFT_TEST_BUILDS"
):  # test these builds (tests/harder.py), not the installed ones
    native.FOLDER = Path(folder)
# tests of each build
RAN = Counter()
LEFT_OUT = Counter()


@pytest.fixture(params=list(native.NEEDS))
def build(request, monkeypatch):
    """Each build of the native kernels in turn, where it runs on this machine; the summary counts
    them.
    """
    library, why_not = native.opened(request.param)
    if library is None:
        LEFT_OUT[request.param] += 1
        pytest.skip(why_not)
    RAN[request.param] += 1
    monkeypatch.setattr(native, "library", lambda: library)
    return library


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items) -> None:
    from support.covering import thin

    thin(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session) -> None:
    """A worker of pytest-xdist sends what the summary shows to the process that prints it."""
    if hasattr(session.config, "workeroutput"):
        from support import broken

        session.config.workeroutput["tables"] = dict(RAN), dict(LEFT_OUT), broken.CAUGHT


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    from support import broken

    ran, left_out, caught = getattr(node, "workeroutput", {}).get("tables", ({}, {}, {}))
    RAN.update(ran)
    LEFT_OUT.update(left_out)
    for fault, checks in caught.items():
        broken.CAUGHT.setdefault(fault, []).extend(checks)


def count_builds(terminalreporter) -> None:
    terminalreporter.section("builds of the native kernels")
    best = next((kind for kind in native.NEEDS if native.opened(kind)[0] is not None), None)
    wish = os.environ.get("LONGDRAFT_NATIVE") or (best[1:] if best else "none")
    terminalreporter.write_line(f"tests that choose none ran on: {wish}")
    for kind in native.NEEDS:
        library, why_not = native.opened(kind)
        why = f", {LEFT_OUT[kind]} skipped: {why_not}" if library is None else ""
        terminalreporter.write_line(f"{kind[1:]:<10} {RAN[kind]} tests ran{why}")


def pytest_terminal_summary(terminalreporter) -> None:
    from support import broken

    count_builds(terminalreporter)
    if not broken.CAUGHT:
        return
    terminalreporter.section("planted faults, and the checks that caught each")
    width = max(map(len, broken.CAUGHT))
    for fault, checks in sorted(broken.CAUGHT.items()):
        terminalreporter.write_line(f"{fault:<{width}}  {', '.join(sorted(checks))}")
