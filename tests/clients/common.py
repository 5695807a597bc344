"""What the clients' scripts share: the request, what must come out, and a line of JSON for each
check.
"""

from __future__ import annotations

import json
import os
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any

GIVEN: dict[str, Any] = json.loads(os.environ["CLIENT_GIVEN"])  # written by run.py
URL = GIVEN["url"]
KEY = GIVEN["key"]
MODEL = GIVEN["model"]
TEXT = GIVEN["text"]
API = f"{URL}/v1"
SAMPLING: dict[str, Any] = GIVEN["sampling"]  # max_tokens, seed and temperature
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": TEXT}], **SAMPLING}
LONG = GIVEN["long"]  # tokens that take seconds to decode, for clients that leave before


class Skip(Exception):
    """This client cannot do what the check is about."""


def check(call: Callable[[], Any]) -> None:
    """Run a check, which is named as its function, and print its result."""
    ok: bool | None = True
    why = ""
    try:
        call()
    except Skip as reason:
        ok = None
        why = str(reason)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ok = False
        why = f"{type(error).__name__} at line {place.lineno}: {error}"
    print(json.dumps({"check": call.__name__, "ok": ok, "why": why[:600]}), flush=True)


def equal(found: Any, wanted: Any) -> None:
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"


def close(found: list[float], wanted: list[float]) -> None:
    assert len(found) == len(wanted), f"found {len(found)} numbers, wanted {len(wanted)}"
    assert all(abs(a - b) < 1e-6 for a, b in zip(found, wanted, strict=True)), (
        f"found {found}, wanted {wanted}"
    )


def refused(call: Callable[[], Any], kind: type[Exception], word: str) -> None:
    """The call must raise this error of the client's own, with this word in its message."""
    try:
        call()
    except kind as error:
        assert word in str(error), f"the message says: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def metric(name: str) -> float:
    """The sum over its labels."""
    request = urllib.request.Request(f"{URL}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == name)


def leaving(begin: Callable[[], Callable[[], Any]]) -> None:
    """The server stops decoding for a client that leaves.

    begin: starts a stream of LONG tokens and reads its beginning -> a call that leaves.
    """
    before = metric("vllm:generation_tokens_total")
    leave = begin()
    assert metric("vllm:num_requests_running") >= 1, (
        "the stream ended before the client could leave"
    )
    leave()
    deadline = time.monotonic() + 5
    while metric("vllm:num_requests_running") or metric("vllm:num_requests_waiting"):
        assert time.monotonic() < deadline, "the request still runs 5 s after its client left"
        time.sleep(0.02)
    decoded = metric("vllm:generation_tokens_total") - before
    assert 0 < decoded < LONG, (
        f"{decoded:.0f} of {LONG} tokens were decoded for a client that had left"
    )
