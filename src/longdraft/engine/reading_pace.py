"""The share of time in which running rows get their steps while a prompt is read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

STEPS_SHARE = 0.25  # of the time, at least


class ReadingPace:
    """Decides whether more of a prompt may be read before the running rows get another step.

    Reading that delays running rows is followed by steps until they have had STEPS_SHARE of the
    time of both, so that these rows keep at least this share of their speed. Longer steps than
    these buy nothing. now: the time in seconds. owed: seconds of steps that must come first.
    """

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self.owed = 0.0

    def may_read(self, running: int) -> bool:
        """Whether a prompt may be read beside this number of rows.

        Without rows nobody waits, and nothing is owed to those that come.
        """
        if not running:
            self.owed = 0.0
        return self.owed <= 0

    @contextmanager
    def reading(self, running: int) -> Generator[None]:
        """Inside the block prompts are read while this number of rows waits."""
        begin = self.now()
        try:
            yield
        finally:
            if running:
                self.owed += (self.now() - begin) * STEPS_SHARE / (1 - STEPS_SHARE)

    @contextmanager
    def stepping(self) -> Generator[None]:
        """Inside the block the rows get a step."""
        begin = self.now()
        try:
            yield
        finally:
            self.owed = max(self.owed - (self.now() - begin), 0.0)
