"""From a request to its answer: tokens, limits, a seed, and the streams of its choices."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import monotonic, time
from typing import Any, TypeVar

from longdraft.core import Sampler
from longdraft.drafters.base import Drafter
from longdraft.engine.requests import Event
from longdraft.engine.token_logprobs import TokenLogprobs
from longdraft.errors import Busy, InputError
from longdraft.models.chat import Message, Tools, chat_tokens
from longdraft.models.text import text_of, token_ids, token_text
from longdraft.ops import row_seed
from longdraft.sampling_parameters import WINDOW
from longdraft.server.engine import Engine, Stream
from longdraft.server.entry import current
from longdraft.server.log import failure
from longdraft.server.long_texts import LONG, Renderers, check_length, size_of, within
from longdraft.server.metrics import Metrics
from longdraft.server.pieces import Writer, at_once, in_pieces
from longdraft.server.problems import Problem
from longdraft.server.reply import Delta, Reply, Silent
from longdraft.server.schema import ChatRequest, CompletionRequest, Sampled
from longdraft.server.work import Times, Work

T = TypeVar("T")
MOST_LOGPROBS = 1 << 20  # of one answer, alternatives included
FEW_LOGPROBS = 1 << 8  # are formatted in less time than a change of threads may take


@dataclass
class Answer:
    """The choices of a request while they are decoded, all or none of them."""

    service: Service
    work: Work
    streams: list[Stream]
    replies: list[Reply]
    began: float = field(default_factory=monotonic)
    first_s: float | None = None  # after it began: when the first tokens came, and how many
    first_tokens: int = 0
    took_s: float | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None

    def close(self) -> None:
        for stream in self.streams:
            stream.close()

    @property
    def prompt_tokens(self) -> int:
        return len(self.work.prompt)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """vLLM's per-request metrics (Acceptance), so far. As there, None for several choices and without drafting."""
        if len(self.replies) > 1 or not self.service.drafting:
            return None
        return {"speculative_decoding": self.replies[0].drafts.metrics()}

    async def parts(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, delta) as they come, until all choices have finished. Raises Problem."""
        queue = asyncio.Queue[tuple[int, Event]]()
        first_came = asyncio.Event()
        readers = [asyncio.ensure_future(self._read(i, s, queue, first_came)) for i, s in enumerate(self.streams)]
        open_, last, first = len(self.streams), [self.began] * len(self.streams), [True] * len(self.streams)
        how = "error"
        try:
            while open_:
                i, event = await self._next(queue, all(first))
                now = monotonic()
                if event.tokens and self.first_s is None:
                    self.first_s, self.first_tokens = now - self.began, len(event.tokens)
                if not self.work.silent:
                    self.service.metrics.took(event, now - last[i], first[i])
                last[i], first[i] = now, first[i] and not event.tokens
                if event.prompt is not None and event.prompt.logprobs is not None:
                    self.prompt_logprobs = event.prompt.logprobs
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
            self.service.metrics.finished(how, self.prompt_tokens, self.replies, self.took_s)

    async def _next(self, queue: asyncio.Queue[tuple[int, Event]], waiting: bool) -> tuple[int, Event]:
        """The next event, in time."""
        times = self.service.times
        left = times.request_s - (monotonic() - self.began)
        if waiting:
            left = min(left, times.queue_s - (monotonic() - self.began))
        try:
            return await asyncio.wait_for(queue.get(), max(left, 0))
        except TimeoutError:
            phase = "begin" if waiting else "end"
            limit = times.queue_s if waiting else times.request_s
            raise Problem(503, f"this request did not {phase} within {limit:g} s: try again later", retry_s=5) from None

    async def _read(self, i: int, stream: Stream, queue: asyncio.Queue[tuple[int, Event]], came: asyncio.Event) -> None:
        """came: set with the first choice's first event; it has the prompt's log-probabilities, which all echo."""
        async for event in stream:
            if i and self.work.prompt_logprobs:
                await came.wait()
            queue.put_nowait((i, event))
            came.set()

    def _ended(self, event: Event) -> Problem:
        if event.ended == "cancelled":
            return Problem(503, "the server is shutting down: send the request again later", retry_s=5)
        if isinstance(event.error, InputError):
            return Problem(400, str(event.error))
        if isinstance(event.error, MemoryError):
            return Problem(503, "there was not enough memory for this request: try again later", retry_s=5)
        if event.error is not None:
            failure(event.error)
        return Problem(500, "the server could not complete this request")


class Service:
    """One model and one method. Refuses a request that cannot be answered before anything is decoded for it.

    most_new: how many new tokens a request has if it does not say, and at most. stopping: nothing is accepted any more.
    """

    def __init__(self, engine: Engine, tokenizer: Any, model: str, metrics: Metrics, times: Times, most_new: int):
        self.engine, self.tokenizer, self.model = engine, tokenizer, model
        self.metrics, self.times, self.most_new = metrics, times, most_new
        self.created = int(time())
        self.stopping = False
        self.templates, self.word = Renderers(), lru_cache(1 << 17)(partial(token_text, tokenizer))
        self._one_long = asyncio.Lock()  # held while a long text is read, so that short ones find a free thread
        self._reader = ThreadPoolExecutor(1, "longdraft-long")  # of long texts: memory of one thread at most
        self.drafting = type(engine.session.drafter) is not Drafter
        self.target, self.room = engine.session.target, min(engine.session.slots, engine.session.total)

    @property
    def ready(self) -> bool:
        return not self.stopping and self.engine.failure is None

    async def chat(self, body: ChatRequest) -> Work:
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return await self.talk(body, [m.plain for m in body.messages], body.limit, logprobs, body.offered)

    async def talk(
        self,
        body: Sampled,
        messages: list[Message],
        limit: int | None,
        logprobs: int | None = None,
        tools: Tools = None,
    ) -> Work:
        """The work of continuing a conversation."""
        self.check_model(body.model)
        prompt = await self.conversation(messages, tools)
        work = self._work(prompt, body, limit, logprobs)
        self._check_logprobs(work)
        return work

    def _check_logprobs(self, work: Work) -> None:
        """Raises Problem for a request whose answer would have too many."""
        tokens = work.limit + (len(work.prompt) if work.prompt_logprobs else 0)  # of each choice: all echo the prompt
        count = 0 if work.logprobs is None else work.n * tokens * (work.logprobs + 1)
        if count > MOST_LOGPROBS:
            excess = f"up to {count} log-probabilities are more than the {MOST_LOGPROBS} allowed here"
            raise Problem(400, f"{excess}: ask for fewer tokens, choices or alternatives", "logprobs")

    async def completion(self, body: CompletionRequest) -> Work:
        self.check_model(body.model)
        prompt: Any = body.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]  # a list of one prompt
        tokens = await self.tokens(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise Problem(400, "the prompt has no tokens: give some text", "prompt")
        work = self._work(tokens, body, max(body.max_tokens, 1), body.logprobs)
        work.prompt_logprobs, work.silent = body.echo and body.logprobs is not None, body.max_tokens == 0
        self._check_logprobs(work)
        return work

    async def conversation(self, messages: list[Message], tools: Tools = None) -> list[int]:
        """The tokens of a conversation, by the model's chat template."""
        render = within(self.templates.render, self.tokenizer, self.room)
        return await self.aside(size_of([messages, tools]), chat_tokens, self.tokenizer, messages, tools, render)

    async def tokens(self, text: str, special: bool = True, most: int = 0) -> list[int]:
        """A text's tokens, as `longdraft generate` reads it. Raises Problem for more than `most`, or the room."""

        def read() -> list[int]:
            check_length(self.tokenizer, text, max(most, self.room))
            return token_ids(self.tokenizer, text, add_special_tokens=special)

        return await self.aside(len(text), read)

    def text(self, tokens: list[int]) -> str:
        if any(t >= self.target.vocab for t in tokens):
            raise Problem(400, f"a token is not in the model's vocabulary of {self.target.vocab}", "tokens")
        return text_of(self.tokenizer, tokens)

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            raise Problem(404, f"there is no model {name[:80]!r} here: use {self.model!r}", "model", "model_not_found")

    def submit(self, work: Work) -> Answer:
        """Queue the choices of a request, all or none. Raises Problem."""
        if not self.ready:
            raise Problem(503, "the server accepts no requests now: try again later", retry_s=5)
        streams: list[Stream] = []
        try:
            for i in range(work.n):
                stream = self.engine.submit(
                    prompt=work.prompt,
                    max_new_tokens=work.limit,
                    seed=row_seed(work.seed, i),
                    eos=work.eos,
                    sampler=work.sampler,
                    logprobs=work.logprobs,
                    prompt_logprobs=work.prompt_logprobs and i == 0,
                    owner=work.owner,
                )
                streams.append(stream)
        except Exception as error:
            for stream in streams:
                stream.close()
            if isinstance(error, Busy):
                self.metrics.refuse(429)
                raise Problem(429, str(error), retry_s=1) from None
            if isinstance(error, InputError):
                raise Problem(400, str(error)) from None
            raise
        kind = Silent if work.silent else Reply
        answer = Answer(self, work, streams, [kind(self.tokenizer, work.stops) for _ in streams])
        current().answers.append(answer)
        return answer

    def fitting(self, prompt: list[int], limit: int | None) -> int:
        """How many new tokens a request for so many has after this prompt. Raises Problem if there is no room."""
        room = self.room - len(prompt)
        if room < 1:
            excess = (
                f"the prompt has {len(prompt)} tokens, and there is room for {self.room - 1} here: give a shorter one"
            )
            raise Problem(400, excess, "prompt", "context_length_exceeded")
        wanted = min(self.most_new, room) if limit is None else limit
        if wanted > self.most_new:
            raise Problem(400, f"{wanted} new tokens are more than the {self.most_new} allowed here", "max_tokens")
        if wanted > room:
            excess = f"{len(prompt)} prompt tokens and {wanted} new ones exceed the {self.room} that there is room for"
            raise Problem(400, f"{excess}: give at most {room} new tokens", "max_tokens", "context_length_exceeded")
        return wanted

    def _work(self, prompt: list[int], body: Sampled, limit: int | None, logprobs: int | None) -> Work:
        wanted = self.fitting(prompt, limit)
        bias = tuple(sorted((int(token), float(number)) for token, number in body.logit_bias.items()))
        eos = () if body.ignore_eos else self.target.end_tokens
        sampler = Sampler(
            body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            penalty=body.repetition_penalty,
            window=WINDOW.high,
            frequency=body.frequency_penalty,
            presence=body.presence_penalty,
            bias=bias,
        )
        seed = secrets.randbits(62) if body.seed is None else body.seed
        return Work(prompt, wanted, sampler, seed, body.n, body.stops, (*eos, *body.stop_token_ids), logprobs)

    async def formatted(self, count: int, call: Callable[[Writer], T]) -> T:
        """What a call makes with a writer of JSON; of many log-probabilities outside the event loop's thread."""
        return call(at_once) if count <= FEW_LOGPROBS else await self.aside(count, call, in_pieces)

    async def aside(self, size: int, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call on so much (see LONG), outside the event loop's thread. InputError becomes a Problem."""
        try:
            async with self._one_long if size > LONG else nullcontext():
                reader = self._reader if size > LONG else None
                return await asyncio.get_running_loop().run_in_executor(reader, partial(call, *arguments))
        except InputError as error:
            raise Problem(400, str(error)) from None
