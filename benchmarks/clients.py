"""Clients of a server on this machine, over plain sockets: hostile ones, slow ones, many at once.
Each ends by itself.

benchmarks/hostile.py runs them with full counts, the tests with small ones.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from attacks import Shot, as_json, request, shots

Address = tuple[str, int]
HANG_S = 60.0  # an answer that takes longer counts as none


@dataclass
class Answer:
    """status None: the connection was closed without an answer; hung: nothing came in time."""

    shot: Shot
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hung: bool = False

    @property
    def bad(self) -> str | None:
        """What is wrong with it."""
        if self.hung:
            return "no answer"
        if self.status is None:
            return "closed without an answer" if self.shot.after == "read" else None
        if self.status >= 500 and not (self.status == 503 and "retry-after" in self.headers):
            return f"status {self.status}"
        return None


def fire(address: Address, shot: Shot) -> Answer:
    """Send it -> what came back."""
    answer = Answer(shot)
    with socket.create_connection(address, HANG_S) as s:
        with suppress(
            OSError
        ):  # where it is refused before its end, the answer may be there all the same
            s.sendall(shot.data)
        if shot.after == "leave":
            # without a farewell
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return answer
        try:
            if shot.after == "end":
                time.sleep(0.002)
                s.shutdown(socket.SHUT_WR)
            found = HTTPResponse(s, method=shot.data[:4].decode("latin-1").strip())
            found.begin()
            answer.status, answer.headers = (
                found.status,
                {k.lower(): v for k, v in found.getheaders()},
            )
            answer.body = found.read()
        except TimeoutError:
            answer.hung = True
        except (OSError, HTTPException):
            pass
    return answer


def fire_all(address: Address, count: int, seed: int, at_once: int = 6) -> Iterator[Answer]:
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda shot: fire(address, shot), shots(count, seed))


def drip(address: Address, how: str, most_s: float) -> float | None:
    """A client that is slow in one way -> after how many seconds the server closed it; None: it did
    not in time.
    """
    begin = time.monotonic()
    whole = request("/v1/completions", as_json({"model": "tiny", "prompt": "a " * 99}))
    with socket.create_connection(address, 1) as s:
        sent = {"silent": 0, "headers": 4, "body": len(whole) - 40}[how]
        s.sendall(whole[:sent])
        while time.monotonic() - begin < most_s:
            try:
                if how != "silent" and sent < len(whole) - 1:
                    s.sendall(whole[sent : sent + 1])
                    sent += 1
                s.settimeout(1)
                if not s.recv(1000):
                    return time.monotonic() - begin
            except TimeoutError:
                continue
            except OSError:
                return time.monotonic() - begin
    return None


def post(
    address: Address, path: str, body: dict[str, Any], timeout: float = HANG_S
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("POST", path, as_json(body), {"Content-Type": "application/json"})
        found = connection.getresponse()
        return found.status, {k.lower(): v for k, v in found.getheaders()}, found.read()
    finally:
        connection.close()


def crowd(
    address: Address, clients: int, requests: int, new: int, deadline_s: float = 300
) -> tuple[float, Counter[str]]:
    """So many clients send so many requests in all, and come back when a 429 says -> seconds, and
    what was answered.
    """
    numbers = iter(range(requests))
    found = Counter[str]()
    until = time.monotonic() + deadline_s

    def one() -> None:
        for i in numbers:
            body = {
                "model": "tiny",
                "prompt": f"def f{i}(x):\n",
                "max_tokens": new,
                "ignore_eos": True,
                "seed": i,
            }
            while time.monotonic() < until:
                try:
                    status, headers, _ = post(address, "/v1/completions", body)
                except (OSError, HTTPException) as error:
                    found[type(error).__name__] += 1
                    break
                found[str(status)] += 1
                if status != 429:
                    break
                found["429 without Retry-After"] += "retry-after" not in headers
                time.sleep(float(headers.get("retry-after", 1)))

    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(one) for _ in range(clients)]:
            done.result()
    return time.monotonic() - begin, +found


def leave_in_mid_stream(address: Address, number: int, new: int) -> int:
    """Ask for a stream, read its beginning, leave, every other number without a farewell -> the
    status.
    """
    body = {
        "model": "tiny",
        "prompt": f"# {number}\n" + "class A:\n" * 40,
        "max_tokens": new,
        "ignore_eos": True,
        "stream": True,
    }
    with socket.create_connection(address, HANG_S) as s:
        s.sendall(request("/v1/completions", as_json(body)))
        got = b""
        while b"data: " not in got and (more := s.recv(4096)):
            got += more
        if number % 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return int(got.split()[1])


@dataclass
class End:
    """How a stream ended. done: with [DONE]. finish, error: what its last event said."""

    done: bool
    finish: str | None
    error: str | None

    @property
    def proper(self) -> bool:
        return self.done and (self.finish is not None or self.error is not None)


def stream(address: Address, new: int) -> End:
    """One stream, read to its end."""
    body = {
        "model": "tiny",
        "prompt": "class A:\n",
        "max_tokens": new,
        "ignore_eos": True,
        "stream": True,
    }
    connection = HTTPConnection(*address, timeout=HANG_S)
    lines = list[bytes]()
    try:
        connection.request(
            "POST", "/v1/completions", as_json(body), {"Content-Type": "application/json"}
        )
        found = connection.getresponse()
        if found.status != 200:
            return End(True, None, f"status {found.status}")
        for line in found:
            lines += [line.strip()] if line.strip() else []
    except (OSError, HTTPException):
        pass
    finally:
        connection.close()
    done = lines[-1:] == [b"data: [DONE]"]
    last = json.loads(lines[-2].removeprefix(b"data: ")) if done and len(lines) > 1 else {}
    choices = last.get("choices") or [{}]
    return End(done, choices[0].get("finish_reason"), last.get("error", {}).get("message"))


INSIDE = re.compile(
    r"Traceback|0x[0-9a-f]{6,}|/(?:root|home|usr|work|tmp|site-packages)/|\.py\b|<class|<function|object at"  # noqa: E501
    r"|\b(?:torch|pydantic|starlette|uvicorn|fastapi|h11|jinja2|transformers)\b|\b[A-Z][A-Za-z]+(?:Error|Exception)\b",
)


def revealed(answer: Answer) -> list[str]:
    """What an error's answer says about the inside of the server: paths, classes, libraries,
    addresses.
    """
    if answer.status is None or answer.status < 400:
        return []
    sent = answer.shot.data.decode("latin-1")
    return [
        word for word in INSIDE.findall(answer.body.decode("utf-8", "replace")) if word not in sent
    ]
