"""Speed of Transformers' generate with longdraft.hf_generate, beside generate alone.

    python benchmarks/hf_generate.py -m FOLDER

FOLDER is a model of safetensors, as `longdraft export -m smollm2 --out FOLDER` writes, or
`bundled`. The prompt is code of Python's standard library, for each repeat another part of it. All
engines take turns: plain `generate` with its dynamic and its static cache, and
`custom_generate=longdraft.hf_generate` with each method. A streamer notes when the first and the
last token come, so that prefilling and decoding are told apart. The processor time stands beside
the time that passed: on a busy machine it says more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from arguments import Arguments, status
from hf_model import model_and_prompts
from rich.console import Console
from rich.table import Table

import longdraft
from longdraft.engine.generate import Stats
from longdraft.hf.wrapped import lm_of
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

CACHES = {"dynamic cache": {}, "static cache": {"cache_implementation": "static"}}
BASE = "dynamic cache"  # what the others are compared with


@dataclass
class Clock:
    """A streamer that notes when tokens come; the first that it gets is the prompt."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def put(self, value: Any) -> None:
        self.wall.append(perf_counter())
        self.cpu.append(process_time())

    def end(self) -> None:
        pass


def timed(
    model: Any, prompt: list[int], settings: dict[str, Any], stats: Stats | None
) -> dict[str, Any]:
    """One call of `generate`."""
    clock = Clock()
    ids = torch.tensor([prompt])
    clock.put(None)  # the start
    found = model.generate(ids, attention_mask=torch.ones_like(ids), streamer=clock, **settings)
    wall = clock.wall
    cpu = clock.cpu
    return {
        "output": found[0, len(prompt) :].tolist(),
        "first_s": wall[2] - wall[0],
        "decode_s": wall[-1] - wall[2],
        "first_cpu_s": cpu[2] - cpu[0],
        "decode_cpu_s": cpu[-1] - cpu[2],
        "tokens_per_step": None if stats is None else stats.mean_acceptance_length,
    }


def engines(given: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the settings of each engine."""
    yield from CACHES.items()
    for method in given.methods:
        more = {
            "method": method,
            "adaptive": given.adaptive and method != "plain",
            "seed": given.seed,
        }
        yield method, {"custom_generate": longdraft.hf_generate, **more}


def measure(
    model: Any, prompts: list[list[int]], given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Records of all runs, which take turns. The first turn, on a short prompt, warms up and is
    dropped.
    """
    for turn, prompt in enumerate([prompts[0][:256], *prompts]):
        for temperature in (0.0, given.temperature):
            sampling = (
                {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
            )
            outputs: dict[str, list[int]] = {}
            for name, settings in engines(given):
                stats = Stats() if name not in CACHES else None
                own = settings | ({"stats": stats} if stats else {})
                torch.manual_seed(given.seed)
                new = {"max_new_tokens": given.max_new_tokens if turn else 2, "do_sample": False}
                record = timed(model, prompt, new | sampling | own, stats)
                outputs[name] = record.pop("output")
                # Sampled by Transformers, other random numbers are drawn: compare with longdraft's
                # plain decoding.
                base = outputs.get("plain" if temperature else BASE)
                known = base is not None and not (temperature and name in CACHES)
                equal = {"base_equal": outputs[name] == base if known else None}
                if turn:
                    yield (
                        {"method": name, "turn": turn, "temperature": temperature} | record | equal
                    )


def table(records: list[dict[str, Any]], title: str) -> Table:
    """A row per engine and temperature: medians, and decoding time of the dynamic cache over its
    own.
    """
    shown = Table(title=title, title_justify="left")
    left = ("engine", "T")
    for name in (
        *left,
        "first s",
        "decode s",
        "decode CPU s",
        "tokens/s",
        "times",
        "CPU times",
        "tokens/step",
        "equal",
    ):
        shown.add_column(name, justify="left" if name in left else "right")
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for r in records:
        groups.setdefault((r["temperature"], r["method"]), []).append(r)
    for (temperature, name), same in groups.items():
        base = groups[temperature, BASE]
        mid = {k: median(r[k] for r in same) for k in ("first_s", "decode_s", "decode_cpu_s")}
        times, cpu = (
            median(b[k] / r[k] for b, r in zip(base, same, strict=True))
            for k in ("decode_s", "decode_cpu_s")
        )
        steps = [r["tokens_per_step"] for r in same if r["tokens_per_step"] is not None]
        known = [r["base_equal"] for r in same if r["base_equal"] is not None]
        cells = [f"{mid['first_s']:.2f}", f"{mid['decode_s']:.2f}", f"{mid['decode_cpu_s']:.2f}"]
        cells += [f"{(same[0]['tokens'] - 1) / mid['decode_s']:.1f}", f"{times:.2f}", f"{cpu:.2f}"]
        cells += [
            f"{median(steps):.2f}" if steps else "-",
            f"{sum(known)} of {len(known)}" if known else "-",
        ]
        shown.add_row(name, f"{temperature:g}", *cells)
    return shown


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share(
        "model", "context", "max-new-tokens", "temperature", "repeat", "threads", "seed", "out"
    )
    parser.change("dtype", "float32", "outputs are equal in float32 only")
    parser.change(
        "methods", "plain,suffix,vegas", "drafts from the text and from the model gain differently"
    )
    parser.add_argument(
        "--adaptive", action="store_true", help="adapt draft depth and width to predicted costs"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    log = RecordFile(given.out)
    model, prompts = model_and_prompts(given, given.repeat)
    shared = provenance(lm_of(model), given.seed) | {
        "task": "hf_generate",
        "command": given.command,
    }
    shared |= {"context": given.context, "tokens": given.max_new_tokens, "adaptive": given.adaptive}
    found = []
    for record in measure(model, prompts, given):
        found.append(shared | record)
        log.append(found[-1])
    title = (
        f"{Path(given.model).name}, {given.dtype}, {given.context} tokens, medians of "
        f"{given.repeat}"
    )
    title += (
        f"; times: how many times as fast as the {BASE}; equal: outputs as its (T above 0: as "
        "longdraft's plain)"
    )
    Console(width=None if sys.stdout.isatty() else 140).print(table(found, title))


if __name__ == "__main__":
    sys.exit(status(main))
