"""Prompts far beyond the context beside small chats: memory, and waiting times."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from attacks import LONG, as_json, long_body
from clients import Address, post
from server_process import ServerProcess

PATHS = "/v1/chat/completions", "/v1/completions", "/tokenize"
SMALL = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}


class Watch:
    """What a process and its children have in memory, and what small chats wait, until it ends."""

    def __init__(self, server: ServerProcess):
        self.server = server
        self.over = threading.Event()
        self.most_mb = 0.0
        self.waits = list[float]()
        self.statuses = Counter[int]()
        self.threads = [
            threading.Thread(target=run, daemon=True) for run in (self._memory, self._chats)
        ]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _memory(self) -> None:
        while not self.over.is_set():
            self.most_mb = max(self.most_mb, family_mb(self.server))
            time.sleep(0.02)

    def _chats(self) -> None:
        while not self.over.is_set():
            begin = time.monotonic()
            self.statuses[post(self.server.address, PATHS[0], SMALL, 600)[0]] += 1
            self.waits.append(time.monotonic() - begin)


def family_mb(server: ServerProcess) -> float:
    """Resident memory of the server and its children."""
    children = (
        Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    )
    return server.rss_mb + sum(mb(child) for child in children)


def mb(process: str) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def ask(address: Address, path: str, kind: str, size: int, at_once: int) -> Counter[str]:
    """Send so many of these prompts -> how they were answered, by status."""
    body = long_body(path, kind, size)
    with ThreadPoolExecutor(at_once) as pool:
        asked = [pool.submit(post, address, path, body, 600) for _ in range(at_once)]
        return Counter(str(future.result()[0]) for future in asked)


def long_prompts(server: ServerProcess, size: int = 3_900_000, at_once: int = 8) -> dict[str, Any]:
    """Every kind of long text to every path. Sizes are those of bodies, in bytes."""
    for _ in range(20):
        post(server.address, PATHS[0], SMALL)
    server.settle()
    before = family_mb(server)
    most = 0.0
    longest = 0.0
    found = dict[str, dict[str, int]]()
    alone = Watch(server)
    with alone:
        time.sleep(2)
    for path in PATHS:
        for kind in LONG:
            with Watch(server) as watch:
                found[f"{path} {kind}"] = dict(ask(server.address, path, kind, size, at_once))
            most = max(most, watch.most_mb)
            longest = max(longest, *watch.waits)
    server.settle()
    time.sleep(2)
    return {
        "bytes": len(as_json(long_body(PATHS[0], "words", size))),
        "at_once": at_once,
        "answers": found,
        "mb_before": before,
        "mb_peak": most,
        "mb_after": family_mb(server),
        "small_alone_s": max(alone.waits),
        "small_longest_s": longest,
    }
