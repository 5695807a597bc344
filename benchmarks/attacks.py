"""Malformed, oversized, odd or barely allowed requests that a server must survive, by seed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "import os", "max_tokens": 3},
    "/v1/responses": {"input": "a", "max_output_tokens": 3},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALLED = {"type": "function", "function": {"name": "f", "parameters": SHAPE}}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": SHAPE}}
EDGES: dict[str, list[Any]] = {  # values at the ends of what is allowed, and just beyond
    "temperature": [0, 2, 10_000, 5e-324, 1e-300, 1e-38, -0.0, 10_000.1],
    "top_p": [1, 5e-324, 1e-300, 0, 1.1],
    "top_k": [-1, 0, 1, 1 << 31, (1 << 31) + 1],
    "min_p": [0, 1, 5e-324, -1],
    "frequency_penalty": [-2, 2, 3],
    "presence_penalty": [-2, 2, -2.1],
    "repetition_penalty": [0.001, 1000, 0, 1001],
    "logit_bias": [
        {str(i): -100 for i in range(300)},
        {"0": 100, "1": 100},
        {"999999999": 1},
        {"-1": 1},
    ],
    "seed": [-(1 << 63), (1 << 64) - 1, 1 << 64, 0],
    "n": [1, 8, 9, 0],
    "stop": ["a", ["a", " ", "\n", "e"], ["x" * 256] * 4, "", ["a"] * 5, "\ud800"],
    "stop_token_ids": [[0], [(1 << 31) - 1] * 64, [-1], [1] * 65],
    "logprobs": [True, 20, 0, 21, None],
    "max_tokens": [1, 0, 16, 1 << 31, 10**30, -1],
    "echo": [True, False],
    "stream": [True],
    "stream_options": [
        {"include_usage": True, "continuous_usage_stats": True},
        {},
        {"include_usage": 1},
    ],
    "ignore_eos": [True],
    "min_tokens": [3, 1, 0, -1],
    "tools": [
        [CALLED],
        [CALLED | {"strict": True}, CALLED],
        [],
        [{}],
        [{"type": "function"}],
        [None],
        {"a": 1},
    ],
    "tool_choice": [
        "required",
        "auto",
        "none",
        {"type": "function", "function": {"name": "f"}},
        "f",
    ],
    "parallel_tool_calls": [False, True, 0],
    "response_format": [
        {"type": "json_object"},
        AS_SCHEMA,
        {"type": "json_schema"},
        {"type": "text"},
        {},
    ],
    "structured_outputs": [
        {"regex": "a|b{1,3}"},
        {"choice": ["a", "b"]},
        {"json": {"enum": [1]}},
        {"regex": "("},
        {},
    ],
    "chat_template": ["{{ ''.__class__ }}"],
    "metadata": [{"a": "\ud800"}, {"\ud800": "a"}, {"a": 1}],
    "model": ["other", "../../etc/passwd", "\ud800", ""],
    "prompt": [
        [5],
        "",
        "\0",
        "\ud800",
        "<|endoftext|>" * 9,
        [0],
        [1 << 20],
        [-1],
        ["a", "b"],
        [[1]],
        "x" * 9000,
    ],
    "messages": [[], [{}], [{"role": "tool", "content": "a"}], [{"role": "user"}], "a", [1] * 2000],
}
LONG = {
    "words": "the quick brown fox ",
    "letters": "x",
    "spaces": " ",
    "lines": "\n",
    "characters": "\u6f22\u5b57",
}
COMMON = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
]
NAMES = [
    *EDGES,
    "input",
    "instructions",
    "user",
    "n_predict",
    "prompt_embeds",
    "best_of",
    "",
    "\ud800",
    "__class__",
]
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
METHODS = (
    "GET",
    "HEAD",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "ABC" * 50,
    "PRI",
)
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
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",  # noqa: E501
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
    + b"9" * 400
    + b"\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",  # noqa: E501
    b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",  # noqa: E501
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
)


@dataclass(frozen=True)
class Shot:
    """kind: what it tries. after: "read" the answer, "end" what is sent and read, "leave" at once
    or after a part.
    """

    kind: str
    data: bytes
    after: str = "read"


def request(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    given = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    given |= {k.replace("_", "-"): v for k, v in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def long_body(path: str, kind: str, size: int) -> dict[str, Any]:
    """A request of this many bytes, whose prompt is one text, of a kind of LONG."""
    unit = LONG[kind]
    text = unit * (size // (len(as_json(unit)) - 2))
    if path == "/tokenize":
        return {"model": "tiny", "prompt": text}
    given = (
        {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    )
    return {"model": "tiny", "max_tokens": 3} | given


def _value(rng: Random, depth: int = 3) -> Any:
    """Some JSON."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice(NAMES): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
    simple = (
        None,
        rng.random() < 0.5,
        rng.randint(-(10**20), 10**20),
        rng.choice([1e308, -1e308, 5e-324, 0.5]),
    )
    return (
        *simple,
        "".join(chr(rng.randrange(1, 0xFFFF)) for _ in range(9)),
        rng.choice([0, -1, 2**64]),
        "",
    )[kind]


def _body(rng: Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(sorted(GOOD))
    return path, GOOD[path] | {"model": "tiny"}


def _valid(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    for name in rng.sample(rng.choice([COMMON, sorted(EDGES)]), rng.randrange(1, 4)):
        # more often one that is allowed
        body[name] = EDGES[name][int(len(EDGES[name]) * rng.random() ** 2)]
    return Shot("values at the edge", request(path, as_json(body)))


def _types(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    for _ in range(rng.randrange(1, 5)):
        body[rng.choice([*body, *NAMES])] = _value(rng)
    return Shot("wrong types", request(path, as_json(body)))


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
        "deep JSON",
        request(
            path, b'{"model":"tiny","' + name + b'":' + opening * n + b"1" + closing * n + b"}"
        ),
    )


def _wide(rng: Random, most: int) -> Shot:
    """As large as a body may be, and as slow as possible to check."""
    n = most // 20
    wide: list[Any] = [["a"] * n, [1] * n, [None] * n, {f"x{i}": 1 for i in range(n)}, [{}] * n]
    name = rng.choice(
        ["prompt", "messages", "input", "tools", "stop", "logit_bias", "tokens", "metadata", "x"]
    )
    path, body = _body(rng)
    return Shot("wide JSON", request(path, as_json(body | {name: rng.choice(wide)})))


def large(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    data = as_json(body | {"user": "x" * (10 << 20)})
    if rng.random() < 0.5:
        return Shot("10 MB", request(path, data))
    head = request(path).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    return Shot(
        "10 MB in chunks",
        head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n",
    )


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
    return Shot("headers", request(path, as_json(body), **more))


def _kinds(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    kind = rng.choice(
        [
            "text/plain",
            "multipart/form-data; boundary=x",
            "",
            "application/json; charset=utf-16",
            "a" * 999,
        ]
    )
    return Shot("content types", request(path, as_json(body), Content_Type=kind))


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (64 << 20), 9)


def _packed(rng: Random, most: int) -> Shot:
    path, _ = _body(rng)
    return Shot(
        "compressed",
        request(
            path, _bomb(), Content_Encoding=rng.choice(["gzip", "deflate", "br", "gzip, gzip"])
        ),
    )


def _routes(rng: Random, most: int) -> Shot:
    path = rng.choice([*PATHS, *GOOD, "/health", "/v1/models", "/metrics", "/openapi.json"])
    return Shot("methods and paths", request(path, method=rng.choice(METHODS)))


def _broken(rng: Random, most: int) -> Shot:
    data = rng.choice(
        [*BROKEN, rng.randbytes(300), request("/tokenize", b"{}")[: rng.randrange(1, 90)]]
    )
    return Shot("broken HTTP", data, after="end")


def _leaving(rng: Random, most: int) -> Shot:
    path, body = _body(rng)
    data = request(path, as_json(body | {"stream": True}))
    return Shot(
        "clients that leave", data[: rng.randrange(len(data) // 2, len(data) + 1)], after="leave"
    )


MAKERS: dict[Callable[[Random, int], Shot], int] = {
    _valid: 22, _types: 24, _odd: 14, _deep: 4, _wide: 1, large: 1, _headers: 6, _kinds: 4,
    _packed: 2, _routes: 10,
    _broken: 8, _leaving: 4,
}  # fmt: skip


def shots(count: int, seed: int, most_body: int = 4 << 20) -> Iterator[Shot]:
    """Requests that a server must survive; most_body: the largest body that it reads."""
    rng = Random(seed)
    for make in rng.choices(list(MAKERS), list(MAKERS.values()), k=count):
        yield make(rng, most_body)
