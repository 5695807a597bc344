"""One log line for each request, and an id for it that client, answer and log share."""

from __future__ import annotations

import logging
import re
from collections import Counter
from time import monotonic
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longdraft.server.anthropic.error_shape import PATH as MESSAGES
from longdraft.server.http.entry import ENTRY, Entry, figures
from longdraft.server.http.guard import ALWAYS
from longdraft.server.http.server_log import say

USABLE = re.compile(rb"[A-Za-z0-9._-]{1,64}")  # ids that a client may choose
MOST_CLIENTS = 1000  # that are counted apart


class Access:
    """Logs each request once: when it has been answered, and probes (ALWAYS) only if they fail.

    Refusals are logged separately; a client address gets `most` lines in `window_s` seconds. Later
    ones are counted, and one line reports the count. strict: see Entry.
    """

    def __init__(self, app: ASGIApp, most: int = 10, window_s: float = 10.0, strict: bool = False):
        self.app = app
        self.strict = strict
        self.most = most
        self.window_s = window_s
        # of each client in this window; "" counts lines
        self.refusals: dict[str, Counter[str]] = {}
        self.since = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(reversed(scope["headers"])).get(b"x-request-id", b"")
        entry = Entry(given.decode()) if USABLE.fullmatch(given) else Entry()
        entry.strict = self.strict
        entry.identify("req-")
        status = 500

        async def passed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                id = entry.name if entry.name.encode() == given else entry.id
                headers = [*message.get("headers", ()), (b"x-request-id", id.encode())]
                if scope["path"].startswith(MESSAGES):
                    headers.append((b"request-id", id.encode()))
                if entry.ignored:
                    headers.append((b"x-longdraft-ignored", ", ".join(entry.ignored).encode()))
                if entry.method is not None:
                    headers.append((b"x-longdraft-method", entry.method.encode()))
                if entry.warnings:
                    warning = "; ".join(entry.warnings).encode()
                    headers.append((b"x-longdraft-warning", warning))
                message["headers"] = headers
            await send(message)

        token = ENTRY.set(entry)
        try:
            await self.app(scope, receive, passed)
        finally:
            ENTRY.reset(token)
            self._log(scope, entry, status)

    def _log(self, scope: Scope, entry: Entry, status: int) -> None:
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        request = {"id": entry.id, "method": scope["method"], "path": path}
        if status >= 400 and status != 499:
            client = (scope.get("client") or ("", 0))[0]
            self.refused(client, status, **request, reason=entry.reason)
        elif scope["path"] not in ALWAYS:
            say(
                logging.INFO,
                "request",
                **request,
                status=status,
                **figures(entry.answers),
                reason=entry.reason,
                ignored=",".join(entry.ignored) or None,
            )

    def refused(self, client: str, status: int, **fields: Any) -> None:
        """Log a refusal, or count it where this client had its share of lines."""
        if client not in self.refusals and len(self.refusals) >= MOST_CLIENTS:
            client = "others"
        counts = self.refusals.setdefault(client, Counter())
        if counts[""] < self.most:
            counts[""] += 1
            level = logging.ERROR if status == 500 else logging.WARNING
            say(level, "refused", client=client, status=status, **fields)
        else:
            counts[str(status)] += 1

    def report(self, last: bool = False) -> None:
        """Log how many refusals were only counted, if the window is over.

        To be called about every second.
        """
        if not last and monotonic() - self.since < self.window_s:
            return
        for client, counts in self.refusals.items():
            by_status = {
                f"status_{status}": count for status, count in sorted(counts.items()) if status
            }
            if by_status:
                say(
                    logging.WARNING,
                    "more refused",
                    client=client,
                    count=sum(by_status.values()),
                    **by_status,
                )
        self.refusals = {}
        self.since = monotonic()
