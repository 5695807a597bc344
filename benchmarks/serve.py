"""Throughput and latency of the server, and what it adds to decoding in its own process.

    python benchmarks/serve.py --methods plain,vegas,auto

For each method a server of its own is started, and clients in this process ask it about Python's
documentation:
- throughput of four requests at once and of the same four one after another, their prompts known
  (they were sent once
  before), so that decoding alone is measured;
- time to the first token of an unknown prompt, alone and while three streams run, and the longest
  time that a stream
  then waited for its next tokens;
- time to the first token of a second question about the same document;
- what the server adds to decoding in its own process.
With --peer-llama-server FILE (benchmarks/build_llama_cpp.py) the same requests go to llama.cpp's
server, where the API allows it; with --wheel, to that of the package xllamacpp, which is not built
for this machine.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from threading import Event
from time import perf_counter
from typing import Any

import httpx
import torch
from arguments import Arguments, status
from rich.console import Console
from rich.table import Table

from longdraft.bench.peers.llama_binary import FLASH, Binary
from longdraft.bench.peers.llama_server import Build, LlamaServerSettings
from longdraft.bench.peers.llama_wheel import Wheel
from longdraft.core import Sampler
from longdraft.core.options import pairs
from longdraft.engine.generate import Stats, stream
from longdraft.methods.drafter_weights import DrafterWeights
from longdraft.methods.spec import MethodSpec
from longdraft.models.fetch import fetched
from longdraft.models.loading import load, quiet
from longdraft.ops import threads
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance

MODEL = "smollm2"
CLIENTS = 4


@dataclass
class Timed:
    """When a request's text came, in seconds from its start, and how many tokens it had."""

    text: str
    times: list[float]
    tokens: int

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def took(self) -> float:
        return self.times[-1]

    @property
    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def ask(url: str, prompt: list[int], new: int, seed: int = 0, begun: Event | None = None) -> Timed:
    """One streamed request. begun: is set at its first text."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": new,
        "temperature": 0,
        "seed": seed,
        "stream": True,
    }
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
    text = ""
    times = []
    tokens = 0
    start = perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            found = json.loads(line[6:])
            if "error" in found:
                raise RuntimeError(found["error"]["message"])
            if found["choices"]:
                text += found["choices"][0]["text"]
                times.append(perf_counter() - start)
                if begun is not None:
                    begun.set()
            if found.get("usage"):
                tokens = found["usage"]["completion_tokens"]
    return Timed(text, times, tokens)


def together(url: str, prompts: list[list[int]], new: int) -> tuple[list[Timed], float]:
    """All prompts at once -> what came, and the seconds until all had ended."""
    start = perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda p: ask(url, p, new), prompts))
    return found, perf_counter() - start


@contextlib.contextmanager
def served(method: str, options: list[str]) -> Iterator[str]:
    """The address of a server with this method."""
    words = [
        sys.executable,
        "-m",
        "longdraft",
        "serve",
        "-m",
        MODEL,
        "--method",
        method,
        "--port",
        "0",
    ]
    process = subprocess.Popen([*words, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if " at http" in line), None)
        if line is None:
            raise RuntimeError("the server did not start")
        yield line.split(" at ")[1].strip().removesuffix("/v1")
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def llama_served(build: Build, context: int) -> Iterator[str]:
    """The address of llama.cpp's server on the same file, with as many rows as there are
    clients.
    """
    file = fetched(MODEL)
    count = torch.get_num_threads()
    server = build.start(LlamaServerSettings(file, CLIENTS * context, count, rows=CLIENTS))
    try:
        yield server.address
    finally:
        server.close()


def measure(url: str, tokens: list[int], context: int, new: int, repeats: int) -> dict[str, Any]:
    """All figures of one server."""
    at = iter(range(0, 1 << 30, context // 3))

    def fresh() -> list[int]:
        """A prompt whose beginning was not asked before."""
        begin = next(at) % (len(tokens) - context)
        return tokens[begin : begin + context]

    prompts = [fresh() for _ in range(CLIENTS)]
    for prompt in prompts:
        ask(url, prompt, 1)
    single = []
    decoding = []
    all_at_once = []
    gaps = []
    alone = []
    beside = []
    known = []
    texts: set[tuple[str, ...]] = set()
    for _ in range(repeats):
        begin = perf_counter()
        one_by_one = [ask(url, p, new) for p in prompts]
        single.append(sum(t.tokens for t in one_by_one) / (perf_counter() - begin))
        decoding += [(t.tokens - 1) / (t.times[-1] - t.first) for t in one_by_one]
        found, took = together(url, prompts, new)
        all_at_once.append(sum(t.tokens for t in found) / took)
        texts |= {tuple(t.text for t in one_by_one), tuple(t.text for t in found)}
        document = fresh()
        alone.append(ask(url, document, 2).first)
        known.append(ask(url, [*document[:-8], *tokens[:8]], 2).first)
        running = [Event() for _ in range(CLIENTS - 1)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            streams = [
                pool.submit(ask, url, p, 8 * new, 0, e)
                for p, e in zip(prompts, running, strict=False)
            ]
            for event in running:
                event.wait(120)
            beside.append(ask(url, fresh(), 2).first)
            gaps.append(max(s.result().longest_gap for s in streams))
    return {
        "one_by_one_tokens_per_s": median(single),
        "decoding_tokens_per_s": median(decoding),
        "at_once_tokens_per_s": median(all_at_once),
        "batch_gain": median(all_at_once) / median(single),
        "equal": len(texts) == 1,
        "first_token_s": median(alone),
        "first_token_beside_streams_s": median(beside),
        "longest_gap_s": median(gaps),
        "known_first_token_s": median(known),
        "text": one_by_one[0].text,
    }


def in_process(target: Any, spec: MethodSpec, prompt: list[int], new: int, repeats: int) -> float:
    """Tokens per second of the same decoding without a server, after the prefill."""
    rates = []
    for _ in range(repeats):
        stats = Stats()
        for _ in stream(target, [prompt], spec.paced(target), new, Sampler(), eos=(), stats=stats):
            pass
        rates.append(stats.emitted / (stats.start_s + stats.decode_s))
    return median(rates)


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("context", "max-new-tokens", "repeat", "out")
    parser.change(
        "methods", "plain,vegas,auto", "auto is what the server runs unless told otherwise"
    )
    parser.add_argument(
        "--peer-llama-server", type=Path, help="a llama-server built for this machine"
    )
    parser.add_argument(
        "--wheel", action="store_true", help="llama.cpp as the package xllamacpp, too"
    )
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    new = given.max_new_tokens
    quiet(None)
    target, tokenizer = load(MODEL)
    text = "\n\n".join(topics[k] for k in sorted(topics))
    tokens = tokenizer(text, verbose=False)["input_ids"]
    shared = provenance(target, 0) | {"task": "serve", "command": given.command}
    shared |= {
        "context": given.context,
        "new_tokens": new,
        "clients": CLIENTS,
        "repeats": given.repeat,
    }
    table = Table(
        "method",
        "one by one",
        "at once",
        "gain",
        "first token",
        "beside streams",
        "longest gap",
        "known",
        "overhead",
        "equal",
    )
    file = RecordFile(given.out)
    builds: list[Build] = (
        [Binary(given.peer_llama_server, f) for f in FLASH] if given.peer_llama_server else []
    )
    peers = {f"{b.name}@fa={b.facts['flash_attention']}": b for b in builds}
    peers |= {(wheel := Wheel()).name: wheel} if given.wheel else {}
    for method in [*given.methods, *peers]:
        peer = peers.get(method)
        with llama_served(peer, given.context + 8 * new) if peer else served(method, []) as url:
            record = (
                shared | {"method": method} | measure(url, tokens, given.context, new, given.repeat)
            )
        if peer:
            record |= {"peer": peer.name, "peer_version": peer.version, "peer_build": peer.facts}
        else:
            threads.pin()
            spec = MethodSpec(
                method, method, pairs([]), DrafterWeights(None, False, 0, MODEL, False)
            )
            prompt = tokens[: given.context]
            record["in_process_tokens_per_s"] = in_process(target, spec, prompt, new, given.repeat)
            threads.release()
            record["overhead"] = (
                record["in_process_tokens_per_s"] / record["decoding_tokens_per_s"] - 1
            )
        file.append(record)
        keys = ("one_by_one_tokens_per_s", "at_once_tokens_per_s", "batch_gain", "first_token_s")
        keys += ("first_token_beside_streams_s", "longest_gap_s", "known_first_token_s")
        overhead = f"{record['overhead']:.1%}" if "overhead" in record else ""
        table.add_row(
            method,
            *(f"{record[k]:.2f}" for k in keys),
            overhead,
            "yes" if record["equal"] else "NO",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(status(main))
