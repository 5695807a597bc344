"""Errors and speed of the GPU parts, in one call on a machine with a GPU.

    python benchmarks/gpu.py --minutes 8

Errors of the kernels against float64, their bandwidths beside SDPA, flex_attention and varlen_attn,
what a step costs for random weights of Llama-3.1-8B's and Qwen3-8B's shapes on filled caches,
beside Transformers' generate. Parts come in the order of their worth; one that fails is a record,
and one that no longer fits the time is left out and says so.
A table lies beside the records. --tiny runs every part on a CPU with tiny shapes; set
TRITON_INTERPRET=1 for its kernels.
"""

from __future__ import annotations

import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

import gpu_parts
import torch
from arguments import Arguments, at_least, status
from gpu_parts import SEED, Bench, Row, freed, short

from longdraft.core import provenance
from longdraft.core.provenance import processor
from longdraft.errors import InputError
from longdraft.recording.record_file import RecordFile

Part = tuple[str, str, float, Callable[[], Iterator[Row]]]


def parts(b: Bench) -> Iterator[Part]:
    """(part, model, seconds that it may take, its rows), the most worth first."""
    yield "errors", "", 30, lambda: gpu_parts.errors(b)
    yield "same text", "random 4x512", 30, lambda: gpu_parts.same_text(b)
    yield "memory", "", 5, lambda: gpu_parts.reading(b)
    yield from of_model(b, "llama-3.1-8b")
    for context in b.contexts:
        yield "bandwidth", "", 40, partial(gpu_parts.bandwidth, b, context)
    yield from of_model(b, "qwen3-8b")


def of_model(b: Bench, name: str) -> Iterator[Part]:
    """The parts of one model, which is made by the first that runs and let go after the last."""
    lm = cache(partial(gpu_parts.model, b, name))
    for i, context in enumerate(b.contexts):
        # the first builds kernels
        yield (
            "steps",
            name,
            40 if i else 90,
            lambda c=context: gpu_parts.steps(b, lm(), c),
        )
    for context in b.contexts:
        yield "generate", name, 15, lambda c=context: gpu_parts.generate(b, lm(), "dynamic", c)
    # compiles
    yield (
        "generate",
        name,
        90,
        lambda: gpu_parts.generate(b, lm(), "static", b.contexts[0]),
    )


def run(b: Bench, log: RecordFile, shared: Row) -> list[Row]:
    """Every part, as far as the time goes -> all records."""
    found: list[Row] = []

    def keep(row: Row) -> None:
        found.append(shared | row)
        log.append(found[-1])
        print(line(row), flush=True)

    for part, name, seconds, rows in parts(b):
        begin = perf_counter()
        left = b.end - perf_counter()
        label = {"part": part, "model": name}
        if left < seconds:
            keep(
                label
                | {
                    "method": "-",
                    "skipped": f"{left:.0f} s are left, and it may take {seconds:.0f}",
                }
            )
            continue
        try:
            with freed(), torch.inference_mode():
                for row in rows():
                    keep(label | row)
        except Exception as error:
            traceback.print_exc()
            keep(label | {"method": "-", "failed": short(error)})
        print(f"  ({part} took {perf_counter() - begin:.0f} s)", flush=True)
    return found


COLUMNS = (
    "part",
    "model",
    "method",
    "context",
    "rows",
    "median_ms",
    "gb_s",
    "error",
    "equal",
    "graphs",
    "failed",
    "skipped",
)


def line(row: Row) -> str:
    """One row of the table."""
    cells = [row.get(c, "") for c in COLUMNS]
    return "| " + " | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells) + " |"


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("out")
    parser.add_argument(
        "--minutes", type=at_least(0.0), default=8.0, help="no part begins that may not fit"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="every part on the CPU, with tiny shapes"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    if not given.tiny and not torch.cuda.is_available():
        raise InputError("torch sees no GPU: run this on a machine with one, or give --tiny")
    b = Bench(given.tiny, given.minutes)
    log = RecordFile(given.out)
    shared = {
        "task": "gpu",
        "device": processor(b.device),
        "dtype": str(b.dtype).removeprefix("torch."),
    }
    shared |= {
        "versions": provenance.versions() | {"triton": triton_version()},
        **provenance.checkout(),
        "seed": SEED,
    }
    shared |= {"command": given.command, "time": provenance.now(), "run": uuid.uuid4().hex[:12]}
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    print("\n".join(head))
    found = run(b, log, shared)
    origin = (
        f"{shared['device']}, {shared['versions']}, {shared['git_sha']}, {shared['time']}: "
        f"`{given.command}`"
    )
    given.out.with_suffix(".md").write_text(
        "\n".join([origin, "", *head, *map(line, found), ""]), encoding="utf-8"
    )


def triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(status(main))
