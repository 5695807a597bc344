"""One request's failure is its own; one for good ends the server with a status; a stopping server
ends its streams.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from support.served import TEXT, asked, chunks, client, said, serving, tokens_of

from longdraft.drafters import Drafter
from longdraft.ops.threads import pin, release


class Failing(Drafter):
    """Fails at a prompt that has a certain token."""

    def grow(self, tree, seqs, limits):
        if any(7 in seqs.tokens[b, :n].tolist() for b, n in enumerate(seqs.length.tolist())):
            raise RuntimeError("secret details")
        return tree


@pytest.mark.full
def test_one_failure_is_an_error_and_the_server_goes_on():
    with serving(drafter=Failing()) as server, client(server) as http:
        bad = http.post("/v1/completions", json=asked(prompt=[5, 7, 9]))
        assert bad.status_code == 500 and "secret" not in bad.text
        assert http.post("/v1/completions", json=asked()).json()["choices"][0]["text"] == said(
            tokens_of(TEXT)
        )
        assert http.get("/health").status_code == 200


class Fatal(Drafter):
    """Ends the decoding thread."""

    def grow(self, tree, seqs, limits):
        raise SystemExit(3)


@pytest.mark.timing
def test_a_failure_for_good_ends_the_server_with_a_status():
    with serving(drafter=Fatal()) as server, client(server) as http:
        assert http.post("/v1/completions", json=asked()).status_code == 500
        deadline = time.monotonic() + 10
        while getattr(server, "status", None) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert isinstance(server.engine.failure, SystemExit) and server.status == 1


@pytest.mark.timing
def test_a_stopping_server_ends_its_streams_properly():
    with serving(grace_s=0.2) as server, client(server) as http:
        ended: list[list[dict]] = []

        def ask() -> None:
            with (
                client(server) as mine,
                mine.stream(
                    "POST", "/v1/completions", json=asked(stream=True, max_tokens=250)
                ) as r,
            ):
                ended.append(chunks(r))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for t in threads:
            t.start()
        while server.engine.open < 3:
            time.sleep(0.001)
        server.service.stopping = True
        assert http.get("/health").status_code == 503
        assert http.post("/v1/completions", json=asked()).status_code == 503
        server.engine.cancel_all()
        for t in threads:
            t.join(20)
        assert len(ended) == 3
        assert all(
            "error" in parts[-1] or parts[-1]["choices"][0]["finish_reason"] for parts in ended
        )


class Where(Drafter):
    """Notes how the decoding thread may run."""

    found: tuple[int, set[int]] = 0, set()

    def grow(self, tree, seqs, limits):
        tasks = [int(t.name) for t in Path("/proc/self/task").iterdir()]
        Where.found = (
            torch.get_num_threads(),
            set().union(*(os.sched_getaffinity(t) for t in tasks if t not in before)),
        )
        return tree


before: set[int] = set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_decoding_does_not_share_the_processor_of_the_thread_that_loaded_the_model():
    """The loading thread is pinned, and a thread that it starts would inherit its one processor."""
    count = torch.get_num_threads()
    try:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        pin()
        before.update(int(t.name) for t in Path("/proc/self/task").iterdir())
        with serving(drafter=Where()) as server, client(server) as http:
            assert http.post("/v1/completions", json=asked()).status_code == 200
        threads, places = Where.found
        assert threads == torch.get_num_threads() and len(places) == threads
    finally:
        release()
        torch.set_num_threads(count)
