"""The choices of a request while they are decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from longdraft.engine.requests import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.errors import InputError
from longdraft.server.decode.decoding_thread import Stream
from longdraft.server.decode.metrics import Metrics
from longdraft.server.decode.reply import Delta, Reply
from longdraft.server.decode.work import RequestWork, Times
from longdraft.server.http.pieces import Writer
from longdraft.server.http.problems import Problem
from longdraft.server.http.server_log import failure
from longdraft.server.openai.formats import usage

T = TypeVar("T")


class Owner(Protocol):
    """The interface of the Service that decodes an answer."""

    model: str
    metrics: Metrics
    times: Times

    async def formatted(self, count: int, call: Callable[[Writer], T]) -> T: ...


@dataclass
class Answer:
    """The choices of a request while they are decoded, all or none of them.

    Choice k is number k % n of prompt k // n. prompt_logprobs: those of prompts that have been
    read.
    """

    service: Owner
    work: RequestWork
    streams: list[Stream]
    replies: list[Reply]
    began: float = field(default_factory=monotonic)
    first_s: float | None = None  # after it began: when the first tokens came, and how many
    first_tokens: int = 0
    took_s: float | None = None
    begun: bool = False  # whether a prompt is known to be read, so that queue_s has no more effect
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens read and written so far."""
        return usage(self.work.prompt_tokens, self.replies, self.work.n)

    @property
    def prompt_tokens(self) -> int:
        return self.work.prompt_tokens

    @property
    def metrics(self) -> dict[str, Any] | None:
        """vLLM's per-request metrics so far (see AcceptanceCounts).

        As in vLLM, they are None for several choices and without drafting.
        """
        if len(self.replies) > 1 or self.work.method.deepest == 0:
            return None
        return {"speculative_decoding": self.replies[0].drafts.metrics()}

    @property
    def _method(self) -> str:
        return self.work.method.name or self.service.metrics.own

    async def parts(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, delta) as they come, until all choices have finished. Raises Problem."""
        queue = asyncio.Queue[tuple[int, Event]]()
        came = [asyncio.Event() for _ in self.work.prompts]
        readers = [
            asyncio.ensure_future(self._read(i, s, queue, came)) for i, s in enumerate(self.streams)
        ]
        open_ = len(self.streams)
        last = [self.began] * len(self.streams)
        first = [True] * len(self.streams)
        how = "error"
        try:
            while open_:
                i, event = await self._next(queue, all(first))
                if event.reading is not None:
                    yield i, Delta(reading=event.reading)
                    continue
                now = monotonic()
                if event.tokens and self.first_s is None:
                    self.first_s = now - self.began
                    self.first_tokens = len(event.tokens)
                if not self.work.silent:
                    self.service.metrics.took(event, now - last[i], first[i], self._method)
                last[i] = now
                first[i] = first[i] and not event.tokens
                if event.prompt is not None and event.prompt.logprobs is not None:
                    self.prompt_logprobs[i // self.work.n] = event.prompt.logprobs
                if event.ended in ("failed", "cancelled") and self.replies[i].finish is None:
                    how = "abort"
                    raise self._ended(event)
                if self.replies[i].finish is not None:
                    continue
                delta = self.replies[i].take(event)
                yield i, delta
                if delta.finish is not None:
                    self.streams[i].close()
                    open_ -= 1
        finally:
            for reader in readers:
                reader.cancel()
            self.close()
            self.took_s = monotonic() - self.began
            self.service.metrics.finished(
                how, self.prompt_tokens, self.replies, self.took_s, self._method
            )

    async def _next(
        self, queue: asyncio.Queue[tuple[int, Event]], waiting: bool
    ) -> tuple[int, Event]:
        """The next event, in time.

        waiting: no choice has had an event.
        """
        times = self.service.times
        queued = waiting and not self.begun
        limit = min(times.queue_s, times.request_s) if queued else times.request_s
        try:
            # wait_for of Python 3.11 can lose a cancellation
            async with asyncio.timeout(limit - (monotonic() - self.began)):
                return await queue.get()
        except TimeoutError:
            pass
        self.begun = any(stream.begun for stream in self.streams)
        if queued and self.begun and limit < times.request_s:
            return await self._next(queue, waiting)
        phase = "begin" if queued and not self.begun else "end"
        raise Problem(
            503, f"this request did not {phase} within {limit:g} s: try again later", retry_s=5
        )

    async def _read(
        self,
        i: int,
        stream: Stream,
        queue: asyncio.Queue[tuple[int, Event]],
        came: list[asyncio.Event],
    ) -> None:
        """Put a stream's events into the queue.

        came: set with the first event of a prompt's first choice; that event has the
        log-probabilities, which all choices echo.
        """
        mine = came[i // self.work.n]
        others = i % self.work.n > 0
        async for event in stream:
            if others and self.work.prompt_logprobs:
                await mine.wait()
            queue.put_nowait((i, event))
            mine.set()

    def _ended(self, event: Event) -> Problem:
        if event.ended == "cancelled":
            return Problem(
                503, "the server is shutting down: send the request again later", retry_s=5
            )
        if isinstance(event.error, InputError):
            return Problem(400, str(event.error))
        if isinstance(event.error, MemoryError):
            return Problem(
                503, "there was not enough memory for this request: try again later", retry_s=5
            )
        if event.error is not None:
            failure(event.error)
        return Problem(500, "the server could not complete this request")
