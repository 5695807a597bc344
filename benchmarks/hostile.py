"""How the server withstands attacks and overload.

    python benchmarks/hostile.py --soak 600

With the bundled model on this machine (about 15 minutes, with a soak of 10):
- fuzz: malformed, oversized, slow and half-open requests, their answers, and the server's memory
  before and after;
- overload: many clients at once on a short queue, against as many clients as there are rows;
- disconnects: clients that leave in mid-stream, and the steps that their requests still get;
- long: prompts far beyond the context at once, beside small chats, which must not wait, and the
  server's memory;
- signals: kill -9 and a restart, SIGTERM while streams run, a second SIGTERM;
- soak: a mixture of all of it for some minutes.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from arguments import Arguments, at_least, several, status
from attacks import shots
from clients import crowd, drip, fire, fire_all, leave_in_mid_stream, post, revealed, stream
from long_prompts import long_prompts
from rich.console import Console
from rich.table import Table
from server_process import ServerProcess
from steps_after import StepsAfter

from longdraft import Session, load
from longdraft.core.provenance import checkout, now, processor, versions
from longdraft.errors import InputError
from longdraft.methods import build
from longdraft.prompts.prefix_cache import PrefixCache
from longdraft.recording.record_file import RecordFile
from longdraft.server.uvicorn_server import Server, ServerSettings

Figures = dict[str, Any]
ROWS = 8
QUEUE = 16
PARTS = ("fuzz", "overload", "long", "disconnects", "signals", "soak")


def rss(server: ServerProcess) -> float:
    """Its resident memory once nothing runs."""
    server.settle()
    return median(server.rss_mb for _ in range(5) if time.sleep(0.2) is None)


def fuzz(server: ServerProcess, count: int, seed: int, client_s: float) -> Figures:
    """The server must have been started with these client seconds."""
    warm = count // 5
    for _ in fire_all(server.address, warm, seed + 1):
        pass
    before = rss(server)
    files = server.open_files
    found = Counter[str]()
    bad = []
    told = []
    ways = ["silent", "headers", "body"] * 8
    begin = time.monotonic()
    with ThreadPoolExecutor(len(ways)) as pool:
        slow = [pool.submit(drip, server.address, how, 4 * client_s) for how in ways]
        for answer in fire_all(server.address, count, seed):
            found[str(answer.status)] += 1
            bad += [f"{answer.shot.kind}: {answer.bad}"] if answer.bad else []
            told += [f"{answer.shot.kind}: {word}" for word in revealed(answer)]
        closed = [f.result() for f in slow]
    took = time.monotonic() - begin
    after = rss(server)
    return {
        "requests": count,
        "warm_up": warm,
        "answers": dict(found),
        "bad": bad[:20],
        "bad_count": len(bad),
        "revealed": told[:20],
        "slow_clients": len(ways),
        "slow_closed": sum(s is not None for s in closed),
        "slow_closed_after_s": max((s for s in closed if s is not None), default=None),
        "took_s": took,
        "rss_before_mb": before,
        "rss_after_mb": after,
        "rss_change": after / before - 1,
        "files_before": files,
        "files_after": server.open_files,
        "tracebacks": server.errors,
    }


def overload(server: ServerProcess, clients: int, new: int, repeats: int) -> Figures:
    """The server must have been started with ROWS and QUEUE."""
    crowd(server.address, ROWS, ROWS, new)
    best = []
    over = []
    answers = Counter[str]()
    for _ in range(repeats):
        best.append(clients / crowd(server.address, ROWS, clients, new)[0])
        took, found = crowd(server.address, clients, clients, new)
        over.append(clients / took)
        answers += found
    return {
        "clients": clients,
        "rows": ROWS,
        "queue": QUEUE,
        "new_tokens": new,
        "repeats": repeats,
        "answers": dict(answers),
        "best_requests_per_s": median(best),
        "overload_requests_per_s": median(over),
        "share": median(over) / median(best),
    }


def own_rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def disconnects(count: int) -> Figures:
    """In a server of this process, because steps are counted."""
    target, tokenizer = load("bundled", "float32")
    prefixes = PrefixCache(4096)
    session = Session(
        target, build("vegas", target), ROWS, 1024, chunk=64, queue=QUEUE, prefixes=prefixes
    )
    server = Server(session, tokenizer, ServerSettings("tiny", "vegas", port=0, most_new=400))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = server.servers[0].sockets[0].getsockname()[:2]
    watch = StepsAfter()
    statuses = Counter[int]()

    def leave(number: int) -> int:
        return leave_in_mid_stream(address, number, 400)

    with watch.watching(server), ThreadPoolExecutor(ROWS) as pool:
        statuses.update(pool.map(leave, range(count // 5)))
        before = own_rss()
        statuses.update(pool.map(leave, range(count)))
        deadline = time.monotonic() + 20
        while (server.engine.open or session.running) and time.monotonic() < deadline:
            time.sleep(0.01)
    figures = {
        "disconnects": watch.ended,
        "statuses": {str(k): v for k, v in statuses.items()},
        "most_steps_after": watch.most,
        "left_open": len(watch.open) + server.engine.open,
        "rows_after": session.running,
        "slots_after": session.needed,
        "prefix_blocks": len(prefixes._blocks),
        "prefix_blocks_most": prefixes.most,
        "rss_before_mb": before,
        "rss_after_mb": own_rss(),
    }
    server.should_exit = True
    thread.join(30)
    return figures | {"rss_change": figures["rss_after_mb"] / before - 1}


def signals(place: Path, streams: int = 8) -> Figures:
    with ServerProcess(place, "--grace-seconds", "1", "--max-new-tokens", "1900") as server:
        first = server.loaded_s
        with ThreadPoolExecutor(streams) as pool:
            cut = [pool.submit(stream, server.address, 1900) for _ in range(streams)]
            time.sleep(1)
            server.kill()
            lost = sum(not f.result().done for f in cut)
            server.start()
            again = server.loaded_s
            running = [
                pool.submit(stream, server.address, 1900 if i % 2 else 200) for i in range(streams)
            ]
            time.sleep(1)
            server.send(signal.SIGTERM)
            status = server.process.wait(60)
            ends = [f.result() for f in running]
        server.start()
        with ThreadPoolExecutor(streams) as pool:
            running = [pool.submit(stream, server.address, 1900) for _ in range(streams)]
            time.sleep(0.5)
            server.send(signal.SIGTERM)
            time.sleep(0.2)
            begin = time.monotonic()
            server.send(signal.SIGTERM)
            second = server.process.wait(60)
            at_once = time.monotonic() - begin
        return {
            "loaded_s": first,
            "loaded_again_s": again,
            "streams_lost_by_kill": lost,
            "written": server.written,
            "streams": streams,
            "ended_properly": sum(e.proper for e in ends),
            "ended_with_an_error": sum(e.error is not None for e in ends),
            "status": status,
            "second_signal_s": at_once,
            "second_status": second,
        }


def soak(server: ServerProcess, seconds: float, seed: int) -> Figures:
    """Streams, clients that leave, bad requests, long prompts and known ones, and samples of what
    the process holds.
    """
    until = time.monotonic() + seconds
    outcomes = Counter[str]()
    lock = threading.Lock()
    document = "def f(x):\n    return x + 1\n\n" * 60

    def busy(number: int) -> None:
        rng = Random(seed + number)
        bad = shots(1 << 20, seed + number)
        while time.monotonic() < until:
            kind = rng.choice(["stream", "leave", "bad", "bad", "bad", "long", "known"])
            if kind == "stream":
                result = (
                    "proper" if stream(server.address, rng.randrange(1, 200)).proper else "improper"
                )
            elif kind == "leave":
                result = str(leave_in_mid_stream(server.address, rng.randrange(1 << 20), 400))
            elif kind == "bad":
                result = fire(server.address, next(bad)).bad or "fine"
            else:
                text = (
                    document + f"# {rng.random()}"
                    if kind == "known"
                    else f"# {rng.random()}\n" + document
                )
                result = str(
                    post(server.address, "/v1/completions", {"model": "tiny", "prompt": text})[0]
                )
            with lock:
                outcomes[f"{kind}: {result}"] += 1

    samples: list[dict[str, float]] = []
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(busy, i) for i in range(6)]
        while time.monotonic() < until:
            time.sleep(min(2.0, seconds / 20))
            begin = time.monotonic()
            found = server.metrics()
            samples.append(
                {
                    "rss_mb": server.rss_mb,
                    "files": server.open_files,
                    "threads": server.threads,
                    "rows": found["vllm:num_requests_running"],
                    "slots": found["vllm:kv_cache_usage_perc"],
                    "prefix_cache": found["longdraft:prefix_cache_usage_perc"],
                    "metrics_s": time.monotonic() - begin,
                }
            )
        for f in running:
            f.result()
    settled = server.settle()
    part = max(len(samples) // 5, 1)
    figures: Figures = {
        "seconds": seconds,
        "outcomes": dict(sorted(outcomes.items())),
        "settled": settled,
    }
    for key in samples[0]:
        values = [s[key] for s in samples]
        figures[key] = {
            "second_fifth": median(values[part : 2 * part]),
            "last_fifth": median(values[-part:]),
            "most": max(values),
        }
    after = server.metrics()
    return figures | {
        "rows_after": after["vllm:num_requests_running"],
        "slots_after": after["vllm:kv_cache_usage_perc"],
        "files_after": server.open_files,
        "tracebacks": server.errors,
    }


def options() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.share("seed", "out")
    parser.add_argument(
        "--requests", type=at_least(5), default=10_000, help="malformed, oversized and odd requests"
    )
    parser.add_argument("--clients", type=at_least(1), default=200, help="clients of the overload")
    parser.add_argument("--disconnects", type=at_least(5), default=1000, help="clients that leave")
    parser.add_argument("--soak", type=at_least(0.0), default=600.0, help="seconds of the mixture")
    parser.add_argument("--only", type=several(), default=",".join(PARTS), help="parts to run")
    return parser


def main(words: list[str] | None = None) -> None:
    given = options().parse(words)
    if unknown := set(given.only) - set(PARTS):
        raise InputError(f"--only has {sorted(unknown)[0]!r}: choose from {', '.join(PARTS)}")
    about = {
        "task": "hostile",
        "model": "bundled",
        "method": "vegas",
        "seed": given.seed,
        "device": processor(),
    }
    about |= {"versions": versions(), **checkout(), "command": given.command, "time": now()}
    chosen = given.only
    log = RecordFile(given.out)
    figures = dict[str, Figures]()
    client_s = 5.0
    limits = (
        "--batch",
        str(ROWS),
        "--queue",
        str(QUEUE),
        "--client-requests",
        "512",
        "--prefix-tokens",
        "8192",
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if "signals" in chosen:
            figures["signals"] = signals(place)
        with ServerProcess(place, *limits, "--client-seconds", str(client_s)) as server:
            if "overload" in chosen:
                figures["overload"] = overload(server, given.clients, 96, 3)
            if "long" in chosen:
                figures["long"] = long_prompts(server)
            if "fuzz" in chosen:
                figures["fuzz"] = fuzz(server, given.requests, given.seed, client_s)
            if "soak" in chosen:
                figures["soak"] = soak(server, given.soak, given.seed)
        if "disconnects" in chosen:
            figures["disconnects"] = disconnects(given.disconnects)
    log.append(about | figures)
    table = Table("part", "figure", "value")
    for part, found in figures.items():
        for key, value in found.items():
            table.add_row(
                part, key, f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
            )
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(status(main))
