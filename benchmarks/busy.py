"""What a decoding step costs beside a busy process.

    python benchmarks/busy.py --context 8192

This process uses two processors. In every second window a process that computes without pause runs
on the second one. Each configuration (one thread; two that are pinned; two that are not) is
measured in windows that take turns, quiet and busy; a window's figure is its mean, because another
process delays some steps much and others not at all.
Linux only. On a machine that is not idle the figures mean little: the load before the run is
printed and recorded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import mean, median, quantiles
from time import perf_counter
from typing import Any

import torch
from arguments import Arguments, at_least, status
from rich.console import Console
from rich.table import Table

from longdraft.bench.inputs import texts
from longdraft.bench.steps import ROWS, operations
from longdraft.engine.decode_session import DecodeSession
from longdraft.errors import InputError
from longdraft.models.loading import load, quiet
from longdraft.ops import threads
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

CONFIGURATIONS = {
    "1 thread": (1, False),
    "2 threads, pinned": (2, True),
    "2 threads, not pinned": (2, False),
}
OPERATIONS = ("plain", "verify 8 rows", "draft at 7%")
LIMIT = 1.6  # a plain step beside a busy process may take so many times its quiet time
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
end = time.monotonic() + float(sys.argv[2])
print("ready", flush=True)
while time.monotonic() < end:
    sum(range(10000))
"""


@contextmanager
def busy_process(cpu: int, most: float) -> Iterator[None]:
    """A process that computes on this processor until the block ends, or for `most` seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(cpu), str(most)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline()  # it runs
        yield
    finally:
        process.kill()
        process.wait()


def window(call: Callable[[], Any], parts: int, seconds: float) -> list[float]:
    """Milliseconds of each call, of `parts` steps, in this many seconds."""
    call()  # fills the processor's caches with this operation's data
    times = []
    begin = perf_counter()
    end = begin + seconds
    while not times or begin < end:
        call()
        times.append((perf_counter() - begin) / parts * 1e3)
        begin = perf_counter()
    return times


def measure(
    calls: dict[str, Any], cpu: int, repeat: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Records of all windows, which take turns."""
    for turn in range(repeat):
        for name, (count, pinned) in CONFIGURATIONS.items():
            torch.set_num_threads(count)
            if pinned and not threads.pin():
                continue
            for load_name in ("quiet", "busy"):
                for operation in OPERATIONS:
                    if load_name == "busy":
                        with busy_process(cpu, 4 * seconds + 10):
                            ms = window(*calls[operation], seconds)
                    else:
                        ms = window(*calls[operation], seconds)
                    tail = quantiles(ms, n=20)[-1] if len(ms) > 1 else ms[0]
                    yield {"configuration": name, "operation": operation, "load": load_name,
                    "turn": turn} | {
                        "mean_ms": mean(ms), "median_ms": median(ms), "p95_ms": tail,
                        "calls": len(ms)
                    }  # fmt: skip
            threads.release()


def table(found: list[dict[str, Any]], title: str) -> tuple[Table, bool]:
    """A row per configuration and operation, and whether every plain step keeps within LIMIT."""
    shown = Table(title=title, title_justify="left")
    good = True
    for column in (
        "configuration",
        "operation",
        "quiet ms",
        "busy ms",
        "busy p95",
        "busy / quiet",
        "over 2 threads",
    ):
        shown.add_column(
            column, justify="left" if column in ("configuration", "operation") else "right"
        )
    values = {
        (r["configuration"], r["operation"], r["load"]): [
            x for x in found if all(x[k] == r[k] for k in ("configuration", "operation", "load"))
        ]
        for r in found
    }
    ms = {key: median(x["mean_ms"] for x in same) for key, same in values.items()}
    for operation in OPERATIONS:
        for name in CONFIGURATIONS:
            if (name, operation, "busy") not in ms:
                continue
            idle = ms[name, operation, "quiet"]
            loaded = ms[name, operation, "busy"]
            tail = median(x["p95_ms"] for x in values[name, operation, "busy"])
            best = min(ms[key] for key in ms if key[1:] == (operation, "quiet"))
            cells = [
                f"{idle:.2f}",
                f"{loaded:.2f}",
                f"{tail:.2f}",
                f"{loaded / idle:.2f}",
                f"{loaded / best:.2f}",
            ]
            shown.add_row(name, operation, *cells)
            good &= operation != "plain" or loaded / idle <= LIMIT
    return shown, good


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("model", "rope", "weights", "dtype", "out")
    parser.change("context", 8192, "reading the cache is then a large part of a step")
    parser.change("repeat", 5, "the mean of a window varies more than that of a run")
    parser.add_argument("--seconds", type=at_least(0.0), default=1.0, help="length of a window")
    return parser


def main(words: list[str] | None = None) -> int:
    given = options().parse(words)
    cpus = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
    if len(cpus) < 2:
        raise InputError("Linux and two processors are needed")
    os.sched_setaffinity(0, cpus)  # before torch makes its threads
    quiet(2)
    before = os.getloadavg()[0]
    target, tokenizer = load(given.model, given.dtype, rope=given.rope, weights=given.weights)
    [text] = texts(["book"], [], tokenizer)
    log = RecordFile(given.out)
    session = DecodeSession(target, text.prompts(given.context, 1), max(ROWS), eos=())
    shared = provenance(target, 0) | {"task": "busy", "method": "plain", "command": given.command}
    shared |= {"context": given.context, "load_before": before}
    with torch.inference_mode():
        calls = operations(target, session)
        found = []
        for record in measure(calls, cpus[1], given.repeat, given.seconds):
            log.append(shared | record)
            found.append(record)
    about = (
        f"{target.name}, {given.dtype}, {given.context} tokens, {target.backend.kernels}, "
        f"{shared['device']}"
    )
    shown, good = table(found, f"Milliseconds per step, {about}; load before {before:.2f}")
    Console(width=None if sys.stdout.isatty() else 140).print(shown)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(status(main))
