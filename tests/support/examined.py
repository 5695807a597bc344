"""`longdraft doctor` in an installation in which all is well, but for what a test plants: fixtures,
and its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longdraft.cli import main
from longdraft.doctor import gpu, machine, thread_count
from longdraft.host import installation, limits, memory
from longdraft.ops import bandwidth, native


def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An installation without any problem but those that a test plants; no memory is read."""
    caches = (native._library, native.opened)
    for name in ("LONGDRAFT_NATIVE", "LONGDRAFT_CPU", "LONGDRAFT_TRITON", machine.THP):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth, "bandwidth", lambda size: 40.0)
    monkeypatch.setattr(limits, "processors", lambda: None)
    monkeypatch.setattr(memory, "available", lambda: 8_000_000_000)
    monkeypatch.setattr(thread_count, "problems", lambda *_: [])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "driver", lambda: None)
    monkeypatch.setattr(installation, "bounds", dict)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[int, list[str]]]:
    """run() -> (status, the lines of standard output)."""
    monkeypatch.setenv("COLUMNS", "80")

    def call() -> tuple[int, list[str]]:
        status = main(["doctor"])
        out, err = capsys.readouterr()
        assert err == ""
        return status, out.splitlines()

    return call


def said(lines: list[str]) -> str:
    """The lines as one, with single spaces."""
    return " ".join(" ".join(lines).split())
