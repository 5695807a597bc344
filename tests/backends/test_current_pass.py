"""The one state of threads in backends: passes of two threads, and nested ones, do not mix."""

from __future__ import annotations

import ast
import threading
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import longdraft.backends
from longdraft.backends import current_pass
from longdraft.backends.current_pass import CurrentPass, current, passing

NAMES = [field.name for field in fields(CurrentPass)]
ROOM = Path(longdraft.backends.__file__).parent


def uses_of_thread_locals(source: str) -> int:
    """How often a module names `threading.local`, or imports `local`."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            count += node.attr == "local" and ast.unparse(node.value) == "threading"
        elif isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread"):
            count += sum(alias.name in ("local", "_local") for alias in node.names)
    return count


def test_there_is_one_thread_local():
    counts = {
        str(file.relative_to(ROOM)): n
        for file in ROOM.rglob("*.py")
        if (n := uses_of_thread_locals(file.read_text(encoding="utf-8")))
    }
    assert counts == {"current_pass.py": 1}


def test_another_one_would_be_seen():
    assert uses_of_thread_locals("import threading\nx = threading.local()") == 1
    assert uses_of_thread_locals("from threading import local\nx = local()") == 1


def check_two_threads() -> None:
    """Both threads are inside their passes at the same time, and each sees its own fields alone."""
    both = threading.Barrier(2, timeout=20)
    seen: dict[str, list[bool]] = {}

    def run(name: str) -> None:
        mine = {field: f"{name}'s {field}" for field in NAMES}
        before = [current() == CurrentPass()]
        both.wait()
        with passing(CurrentPass(**mine)):
            both.wait()
            inside = [getattr(current(), field) == mine[field] for field in NAMES]
            both.wait()
        after = [current() == CurrentPass()]
        seen[name] = before + inside + after

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: [True] * (len(NAMES) + 2) for name in ("one", "two")}


def test_passes_of_two_threads_do_not_see_each_other():
    check_two_threads()


def test_a_state_that_threads_share_is_caught(monkeypatch):
    monkeypatch.setattr(current_pass, "_threads", SimpleNamespace(current=CurrentPass()))
    with pytest.raises(AssertionError):
        check_two_threads()


def check_nesting() -> None:
    """An inner pass has its own fields; afterward, also after an error, the outer one has its."""
    before = current()
    with passing(CurrentPass(layer=1, projected="outer")):
        with pytest.raises(ValueError, match="stop"), passing(CurrentPass(layer=2)):
            assert current().layer == 2 and current().projected is None
            current().projected = "inner"
            raise ValueError("stop")
        assert current().layer == 1 and current().projected == "outer"
    assert current() is before


def test_a_nested_pass_restores_the_one_around_it():
    check_nesting()


def test_a_pass_that_an_inner_one_ends_is_caught(monkeypatch):
    @contextmanager
    def passing_then_none(p):
        current_pass._threads.current = p
        try:
            yield
        finally:
            current_pass._threads.current = CurrentPass()

    monkeypatch.setattr(current_pass, "_threads", current_pass._Threads())
    monkeypatch.setitem(globals(), "passing", passing_then_none)
    with pytest.raises(AssertionError):
        check_nesting()
