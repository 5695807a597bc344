"""What hostile and unlucky clients send to a server on this machine, over plain sockets. benchmarks/hostile.py runs it
with full counts, the tests with small ones. Everything follows from a seed and ends by itself."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from random import Random
from typing import Any

Address = tuple[str, int]
HANG_S = 60.0  # an answer that takes longer counts as none
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "import os", "max_tokens": 3},
    "/v1/responses": {"input": "a", "max_output_tokens": 3},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
EDGES: dict[str, list[Any]] = {  # values at the ends of what is allowed, and just beyond
    "temperature": [0, 2, 5e-324, 1e-300, 1e-38, -0.0, 2.0000001],
    "top_p": [1, 5e-324, 1e-300, 0, 1.1],
    "top_k": [-1, 0, 1, (1 << 31) - 1, 1 << 31],
    "min_p": [0, 1, 5e-324, -1],
    "frequency_penalty": [-2, 2, 3],
    "presence_penalty": [-2, 2, -2.1],
    "repetition_penalty": [0.0100001, 100, 0, 101],
    "logit_bias": [{str(i): -100 for i in range(300)}, {"0": 100, "1": 100}, {"999999999": 1}, {"-1": 1}],
    "seed": [-(1 << 63), (1 << 63) - 1, 1 << 63, 0],
    "n": [1, 8, 9, 0],
    "stop": ["a", ["a", " ", "\n", "e"], ["x" * 256] * 4, "", ["a"] * 5, "\ud800"],
    "stop_token_ids": [[0], [(1 << 31) - 1] * 64, [-1], [1] * 65],
    "logprobs": [True, 20, 0, 21, None],
    "max_tokens": [1, 0, 16, 1 << 31, 10**30, -1],
    "echo": [True, False],
    "stream": [True],
    "ignore_eos": [True],
    "tools": [[], [{}], [{"type": "function"}], [None], {"a": 1}],
    "chat_template": ["{{ ''.__class__ }}"],
    "metadata": [{"a": "\ud800"}, {"\ud800": "a"}, {"a": 1}],
    "model": ["other", "../../etc/passwd", "\ud800", ""],
    "prompt": ["", "\0", "\ud800", "<|endoftext|>" * 9, [0], [1 << 20], [-1], ["a", "b"], [[1]], "x" * 9000],
    "messages": [[], [{}], [{"role": "tool", "content": "a"}], [{"role": "user"}], "a", [1] * 2000],
}
COMMON = ["temperature", "top_p", "top_k", "min_p", "frequency_penalty", "repetition_penalty", "seed", "stop_token_ids"]
NAMES = [*EDGES, "input", "instructions", "user", "n_predict", "prompt_embeds", "best_of", "", "\ud800", "__class__"]
PATHS = (
    "/v1/models/../../../etc/passwd",
    "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
    "/v1/models/%00",
    "/v1/models/" + "a" * 3000,
    "/v1/models/%ff%fe",
    "/v1/models/%ed%a0%80",
    "/..",
    "//",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/v1/models/..\\..\\windows",
    "/health/",
    "/metrics?x=" + "y" * 2000,
    "*",
    "http://elsewhere/v1/models",
    "/docs",
    "/.env",
    "/v1/completions/",
)
METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "ABC" * 50, "PRI")
BROKEN = (
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 200,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\nX: \x00\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
)


@dataclass(frozen=True)
class Shot:
    """kind: what it tries. after: "read" the answer, "end" what is sent and read, "leave" at once or after a part."""

    kind: str
    data: bytes
    after: str = "read"


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


def request(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    given = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {k.replace("_", "-"): v for k, v in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _value(rng: Random, depth: int = 3) -> Any:
    """Some JSON."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice(NAMES): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
    simple = None, rng.random() < 0.5, rng.randint(-(10**20), 10**20), rng.choice([1e308, -1e308, 5e-324, 0.5])
    return (*simple, "".join(chr(rng.randrange(1, 0xFFFF)) for _ in range(9)), rng.choice([0, -1, 2**64]), "")[kind]


def _body(rng: Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(sorted(GOOD))
    return path, GOOD[path] | {"model": "tiny"}


def _valid(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    for name in rng.sample(rng.choice([COMMON, sorted(EDGES)]), rng.randrange(1, 4)):
        body[name] = EDGES[name][int(len(EDGES[name]) * rng.random() ** 2)]  # more often one that is allowed
    return Shot("values at the edge", request(path, _json(body)))


def _types(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    for _ in range(rng.randrange(1, 5)):
        body[rng.choice([*body, *NAMES])] = _value(rng)
    return Shot("wrong types", request(path, _json(body)))


def _odd(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    text = json.dumps(body)
    value = rng.choice(
        [
            "NaN",
            "-Infinity",
            "1e999",
            "9" * 5000,
            "-0",
            "1E-999",
            '"\\ud800"',
            '"\\udc00\\ud800"',
            "[",
            '"',
            "tru",
            "//",
        ]
    )
    name = rng.choice(["prompt", "seed", "temperature", "max_tokens", "\\ud800", "model", "x"])
    data = (text[:-1] + f', "{name}": {value}}}').encode()
    cut = rng.randrange(len(data))
    forms = [
        data,
        data[:cut],
        text.encode("utf-16"),
        b"\xef\xbb\xbf" + data,
        data[:cut] + rng.randbytes(4) + data[cut:],
        text[:-1].encode() + b", " + text[1:].encode(),  # every key twice
        rng.randbytes(rng.randrange(1, 400)),
    ]
    return Shot("odd JSON and bytes", request(path, rng.choice(forms)))


def _deep(rng: Random, most: int) -> Shot:
    path, _ = _body(rng)
    n = rng.choice([50, 500, 990, 5000, 200_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
    name = rng.choice([b"prompt", b"messages", b"input", b"tools", b"x"])
    return Shot(
        "deep JSON", request(path, b'{"model":"tiny","' + name + b'":' + opening * n + b"1" + closing * n + b"}")
    )


def _wide(rng: Random, most: int) -> Shot:
    """As large as a body may be, and as slow as possible to check."""
    n = most // 20
    wide: list[Any] = [["a"] * n, [1] * n, [None] * n, {f"x{i}": 1 for i in range(n)}, [{}] * n]
    name = rng.choice(["prompt", "messages", "input", "tools", "stop", "logit_bias", "tokens", "metadata", "x"])
    path, body = _body(rng)
    return Shot("wide JSON", request(path, _json(body | {name: rng.choice(wide)})))


def large(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    data = _json(body | {"user": "x" * (10 << 20)})
    if rng.random() < 0.5:
        return Shot("10 MB", request(path, data))
    head = request(path).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    return Shot("10 MB in chunks", head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n")


def _headers(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    more: dict[str, str] = rng.choice(
        [
            {"X-Big": "x" * 20_000},
            {"X-Big": "x" * 200_000},
            {f"X-{i}": "y" for i in range(3000)},
            {"Authorization": "Bearer " + "\xff" * 99},
            {"Host": "evil.example"},
            {"Host": ""},
            {"Expect": "100-continue"},
            {"Cookie": "a=b; " * 500},
            {"Range": "bytes=0-1"},
            {"X-Forwarded-For": "1.2.3.4"},
        ]
    )
    return Shot("headers", request(path, _json(body), **more))


def _kinds(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    kind = rng.choice(
        ["text/plain", "multipart/form-data; boundary=x", "", "application/json; charset=utf-16", "a" * 999]
    )
    return Shot("content types", request(path, _json(body), Content_Type=kind))


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (64 << 20), 9)


def _packed(rng: Random, most: int) -> Shot:
    path, _ = _body(rng)
    return Shot(
        "compressed", request(path, _bomb(), Content_Encoding=rng.choice(["gzip", "deflate", "br", "gzip, gzip"]))
    )


def _routes(rng: Random, most: int) -> Shot:
    path = rng.choice([*PATHS, *GOOD, "/health", "/v1/models", "/metrics", "/openapi.json"])
    return Shot("methods and paths", request(path, method=rng.choice(METHODS)))


def _broken(rng: Random, most: int) -> Shot:
    data = rng.choice([*BROKEN, rng.randbytes(300), request("/tokenize", b"{}")[: rng.randrange(1, 90)]])
    return Shot("broken HTTP", data, after="end")


def _leaving(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    data = request(path, _json(body | {"stream": True}))
    return Shot("clients that leave", data[: rng.randrange(len(data) // 2, len(data) + 1)], after="leave")


MAKERS: dict[Callable[[Random, int], Shot], int] = {
    _valid: 22, _types: 24, _odd: 14, _deep: 4, _wide: 1, large: 1, _headers: 6, _kinds: 4, _packed: 2, _routes: 10,
    _broken: 8, _leaving: 4,
}  # fmt: skip


def shots(count: int, seed: int, most_body: int = 4 << 20) -> Iterator[Shot]:
    """Requests that a server must survive; most_body: the largest body that it reads."""
    rng = Random(seed)
    for make in rng.choices(list(MAKERS), list(MAKERS.values()), k=count):
        yield make(rng, most_body)


def fire(address: Address, shot: Shot) -> Answer:
    """Send it -> what came back."""
    answer = Answer(shot)
    with socket.create_connection(address, HANG_S) as s:
        with suppress(OSError):  # where it is refused before its end, the answer may be there all the same
            s.sendall(shot.data)
        if shot.after == "leave":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # without a farewell
            return answer
        try:
            if shot.after == "end":
                time.sleep(0.002)
                s.shutdown(socket.SHUT_WR)
            found = HTTPResponse(s, method=shot.data[:4].decode("latin-1").strip())
            found.begin()
            answer.status, answer.headers = found.status, {k.lower(): v for k, v in found.getheaders()}
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
    """A client that is slow in one way -> after how many seconds the server closed it; None: it did not in time."""
    begin = time.monotonic()
    whole = request("/v1/completions", _json({"model": "tiny", "prompt": "a " * 99}))
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
        connection.request("POST", path, _json(body), {"Content-Type": "application/json"})
        found = connection.getresponse()
        return found.status, {k.lower(): v for k, v in found.getheaders()}, found.read()
    finally:
        connection.close()


def crowd(
    address: Address, clients: int, requests: int, new: int, deadline_s: float = 300
) -> tuple[float, Counter[str]]:
    """So many clients send so many requests in all, and come back when a 429 says -> seconds, and what was answered."""
    numbers, found, until = iter(range(requests)), Counter[str](), time.monotonic() + deadline_s

    def one() -> None:
        for i in numbers:
            body = {"model": "tiny", "prompt": f"def f{i}(x):\n", "max_tokens": new, "ignore_eos": True, "seed": i}
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
    """Ask for a stream, read its beginning, leave, every other number without a farewell -> the status."""
    body = {
        "model": "tiny",
        "prompt": f"# {number}\n" + "class A:\n" * 40,
        "max_tokens": new,
        "ignore_eos": True,
        "stream": True,
    }
    with socket.create_connection(address, HANG_S) as s:
        s.sendall(request("/v1/completions", _json(body)))
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
    body = {"model": "tiny", "prompt": "class A:\n", "max_tokens": new, "ignore_eos": True, "stream": True}
    connection, lines = HTTPConnection(*address, timeout=HANG_S), list[bytes]()
    try:
        connection.request("POST", "/v1/completions", _json(body), {"Content-Type": "application/json"})
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
    r"Traceback|0x[0-9a-f]{6,}|/(?:root|home|usr|work|tmp|site-packages)/|\.py\b|<class|<function|object at"
    r"|\b(?:torch|pydantic|starlette|uvicorn|fastapi|h11|jinja2|transformers)\b|\b[A-Z][A-Za-z]+(?:Error|Exception)\b",
)


def revealed(answer: Answer) -> list[str]:
    """What an error's answer says about the inside of the server: paths, classes, libraries, addresses."""
    if answer.status is None or answer.status < 400:
        return []
    sent = answer.shot.data.decode("latin-1")
    return [word for word in INSIDE.findall(answer.body.decode("utf-8", "replace")) if word not in sent]
