"""Times of calls, and of the waits for a processor that other processes caused meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp
from pathlib import Path
from time import perf_counter

import torch

CALM = 0.02  # share of a call's time for which its threads may have waited
# a call's waits count at most this many times its time: more are of threads that do not compute
MOST_WAITS = 3.0


@dataclass(frozen=True)
class Turn:
    """Seconds of one call, and seconds for which its threads waited for a processor.

    Only threads that could run count; waits are summed over threads.
    """

    seconds: float
    waited: float = 0.0

    @property
    def calm(self) -> bool:
        """Whether the processors were this call's own.

        Memory and caches may have been shared all the same.
        """
        return self.waited <= CALM * self.seconds


def waited() -> float:
    """Seconds that this process's threads have waited for a processor so far.

    0 where the system does not count.
    """
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(task.read_text().split()[1])
    return total / 1e9


def turn(call: Callable[[], object], device: torch.device) -> Turn:
    """One call, with the work that it has queued on a GPU."""
    before = waited()
    begin = perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = perf_counter() - begin
    return Turn(seconds, waited() - before)


def shortest(turns: Sequence[Turn]) -> float:
    """Seconds of the shortest calm turn; if none was calm, an estimate.

    The estimate is the middle turn's time without its threads' waits. At a barrier one thread that
    waits holds up all, so of the time the share exp(-waits) was left, if these were at different
    times.
    """
    calm = [t.seconds for t in turns if t.calm]
    if calm:
        return min(calm)
    rest = sorted(t.seconds * exp(-min(t.waited / t.seconds, MOST_WAITS)) for t in turns)
    return rest[(len(rest) - 1) // 2]
