"""Checks a request before anything reads it: host, key, type, size, and its client's share."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longdraft.server.http.long_texts import LARGE, give_back
from longdraft.server.http.problems import Problem

OPEN = {"/health", "/"}  # paths that need no key
ALWAYS = {"/health", "/metrics"}  # paths that are answered while the server drains


@dataclass
class Guard:
    """Refuses requests that the server should not read.

    Every path needs a key unless it is in OPEN. keys: any of them is right; none: no key is needed.
    hosts: the names that a Host header may have, so that a web page elsewhere cannot reach a server
    on this machine by its own name; None: any. most_body, most_headers: bytes, whether or not a
    body comes in chunks. most_requests: how many of a client's requests may be open at once.
    shared: whether requests with different keys may use each other's cached prompts. The state of a
    request has its `owner`: a name for its key, or "" where all are one. draining: whether only
    running requests are answered, and those to ALWAYS; all connections are closed then. busy: how
    many requests are being answered, without those to ALWAYS.
    """

    app: ASGIApp
    keys: Collection[bytes] = ()
    hosts: Collection[str] | None = None
    most_body: int = 4 << 20
    most_headers: int = 16 << 10
    most_requests: int = 64
    shared: bool = False
    draining: Callable[[], bool] = lambda: False
    open: Counter[str] = field(default_factory=Counter)
    busy: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets

        async def passed(message: Message) -> None:
            if message["type"] == "http.response.start" and self.draining():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        client = (scope.get("client") or ("", 0))[0]
        problem = self._problem(scope, client)
        if problem is not None:
            if problem.status == 503:
                await self._read_out(receive)
            await problem.response(scope["path"])(scope, receive, passed)
            return
        scope.setdefault("state", {})["owner"] = self._owner(scope)
        counts = scope["path"] not in ALWAYS
        self.open[client] += 1
        self.busy += counts
        try:
            await self._bounded(scope, receive, passed)
        finally:
            self.busy -= counts
            self.open[client] -= 1
            self.open += Counter()  # forgets clients without requests

    def _problem(self, scope: Scope, client: str) -> Problem | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self.most_headers:
            return Problem(
                431, f"the headers are larger than {self.most_headers} bytes: send fewer"
            )
        headers = dict(reversed(scope["headers"]))
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # It is unclear where the body ends.
            return Problem(
                400,
                "the request has Content-Length and Transfer-Encoding: send one of them",
                close=True,
            )
        host = re.sub(r":\d+$", "", headers.get(b"host", b"").decode("latin-1")).lower()
        if self.hosts is not None and host not in self.hosts:
            return Problem(
                421,
                "this host name is not served here: use the address that the server is bound to",
            )
        if self.keys and scope["path"] not in OPEN and not any(self._matches(headers)):
            return Problem(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or "
                "'x-api-key: KEY'",
                code="invalid_api_key",
            )
        if self.draining() and scope["path"] not in ALWAYS:
            return Problem(
                503, "the server is shutting down: send the request again later", retry_s=5
            )
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                return Problem(415, "the body must be JSON: send Content-Type: application/json")
            if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
                return Problem(
                    415, "compressed bodies are not read here: send it without Content-Encoding"
                )
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length[:20]) > self.most_body:
                return self._too_large()
        if self.open[client] >= self.most_requests:
            return Problem(
                429,
                f"{self.most_requests} requests of this client are open: wait for one",
                retry_s=1,
            )
        return None

    def _matches(self, headers: dict[bytes, bytes]) -> list[bool]:
        """Tells of each of the keys whether the request has it.

        Anthropic's clients send it as x-api-key.
        """
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        is_bearer = scheme.lower() == b"bearer"
        other = headers.get(b"x-api-key", b"")
        matches = []
        for key in self.keys:
            # both are compared, whichever is right
            first = hmac.compare_digest(bearer.strip(), key)
            second = hmac.compare_digest(other.strip(), key)
            matches.append((is_bearer and first) or second)
        return matches

    def _owner(self, scope: Scope) -> str:
        matches = [] if self.shared else self._matches(dict(reversed(scope["headers"])))
        if True not in matches:
            return ""
        # Not its place among the keys, which may change while prompts that are kept on disk stay.
        return sha256(list(self.keys)[matches.index(True)]).hexdigest()

    def _too_large(self) -> Problem:
        return Problem(413, f"the body is larger than {self.most_body} bytes: send less")

    async def _read_out(self, receive: Receive) -> None:
        """Read a body that nobody wants.

        If the connection were closed before that, it would be reset, and the answer might be lost.
        """
        size = 0
        while size <= self.most_body:
            message = await receive()
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                return

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application.

        A body that turns out larger than allowed ends as if the client had left.
        """
        size = 0
        refused = False
        begun = False

        async def counted() -> Message:
            nonlocal size, refused
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > self.most_body:
                    refused = True
                    return {"type": "http.disconnect"}
            return message

        async def passed(message: Message) -> None:
            nonlocal begun
            if not refused:
                begun = begun or message["type"] == "http.response.start"
                await send(message)

        try:
            await self.app(scope, counted, passed)
        except Exception:
            if not refused:
                raise
        if refused and not begun:
            await self._too_large().response(scope["path"])(scope, receive, send)
        if size > LARGE:
            await asyncio.to_thread(give_back)
