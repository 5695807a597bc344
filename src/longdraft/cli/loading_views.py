"""Progress of loading a model on standard error, once it has taken PATIENCE seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Any

PATIENCE = 2.0  # seconds before loading shows its progress
PAUSE = 5.0  # seconds between lines


@contextmanager
def delayed(seconds: float, show: Callable[[], None]) -> Iterator[None]:
    """Call `show` in a thread after this many seconds, unless the block ends before."""
    soon = Timer(seconds, show)
    soon.daemon = True
    soon.start()
    try:
        yield
    finally:
        soon.cancel()
        soon.join()


@contextmanager
def loading_bar(name: str) -> Iterator[Callable[[float], None]]:
    """A progress bar -> what to call with the fraction that is loaded.

    Silent unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("loading {task.description}"), BarColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(name, total=None)  # it pulses until a fraction is known

    def report(fraction: float) -> None:
        bar.update(task, total=1, completed=fraction)

    try:
        with delayed(PATIENCE, bar.start):
            yield report
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def loading_lines(name: str, say: Callable[[str], Any]) -> Iterator[Callable[[float], None]]:
    """Lines instead of a bar: one at first, then one every PAUSE seconds, and one at the end."""
    lines = _Lines(name, say)
    with delayed(PATIENCE, lines.begin):
        yield lines.report
    lines.end()


class _Lines:
    def __init__(self, name: str, say: Callable[[str], Any]):
        self.name = name
        self.say = say
        self.fraction = 0.0
        self.started = time.monotonic()
        self.last: float | None = None  # when a line was said
        self.lock = Lock()

    def begin(self) -> None:
        with self.lock:
            self._line()

    def report(self, fraction: float) -> None:
        with self.lock:
            self.fraction = fraction
            if self.last is not None and time.monotonic() - self.last >= PAUSE:
                self._line()

    def end(self) -> None:
        if self.last is not None:
            self.say(f"loaded {self.name} in {time.monotonic() - self.started:.1f} s")

    def _line(self) -> None:
        self.last = time.monotonic()
        part = f": {self.fraction:.0%}" if self.fraction else ""
        self.say(f"loading {self.name}{part}")
