"""Pinned threads have a processor each, and are let go again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from longdraft.cli import main
from longdraft.ops import native, threads

pytestmark = pytest.mark.skipif(
    native.library() is None or not hasattr(os, "sched_getaffinity"),
    reason="no native build, or not on Linux",
)


def masks() -> dict[int, set[int]]:
    """Where each thread of this process may run. Threads that other tests have left may end at any
    time.
    """
    torch.ones(1 << 20).sum()  # the pool is there
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


@pytest.fixture
def pool(monkeypatch):
    """As many threads as processors, and nothing said about them."""
    for name in threads.AFFINITY:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor alone")
    torch.set_num_threads(len(allowed))
    yield allowed
    threads.release()
    torch.set_num_threads(before)


def test_each_has_its_own_and_all_are_restored(pool):
    before = masks()
    with threads.pinned() as done:
        assert done and threads.are_pinned()
        alone = [m for m in masks().values() if len(m) == 1]
        assert (
            set().union(*alone) == pool and os.sched_getaffinity(threading.get_native_id()) in alone
        )
    after = masks()
    assert (
        not threads.are_pinned()
        and after
        and all(before.get(t, pool) == m for t, m in after.items())
    )


def test_left_alone_where_someone_else_decides(pool, monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    with threads.pinned() as done:
        assert not done and all(m == pool for m in masks().values())
    monkeypatch.delenv("OMP_PROC_BIND")
    torch.set_num_threads(1)  # fewer than processors: the scheduler knows better
    assert not threads.pin()


@pytest.mark.full
def test_a_command_lets_them_go(pool, capsys):
    seen = []
    good = threads.pin
    threads_pin = lambda: seen.append(good())  # noqa: E731
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("longdraft.ops.threads.pin", threads_pin)
        assert main(["generate", "def f(x):", "--max-new-tokens", "4"]) == 0
    assert seen == [True] and not threads.are_pinned() and all(m == pool for m in masks().values())
