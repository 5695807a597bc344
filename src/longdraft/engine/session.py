"""A session: requests of many callers in one batch. Each of them enters, ends and fails on its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from threading import Lock
from time import perf_counter
from typing import Self

import torch

from longdraft.core import PromptSpec, Sampler, Sequences, Verifier, match, without
from longdraft.drafters.base import Drafter
from longdraft.engine.generate import Stats, check, check_pair, step
from longdraft.errors import InputError
from longdraft.models.lm import LM

SPARE = 128  # slots of a row for the nodes of a draft tree


@dataclass(frozen=True)
class Request:
    """A prompt and everything that determines its output."""

    id: int
    prompt: list[int]
    max_new_tokens: int
    seed: int
    eos: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """New tokens of a request and, in its last event, how it ended.

    ended: "eos" (the last token is an end token), "length", "cancelled" or "failed"; None if it has not ended. error:
    why it failed.
    """

    id: int
    tokens: list[int]
    ended: str | None = None
    error: BaseException | None = None


class Session:
    """Every request that `submit` accepts gets exactly one event in which it ends, whatever happens to the others.

    At most `batch` requests run at once, each in a row with `slots` slots for its prompt and its new tokens; the others
    wait in order of submission. Batching never changes a request's output: it equals that of `generate` with the same
    seed. `submit` and `cancel` may be called from any thread at any time; `step` from one thread at a time.
    """

    def __init__(
        self,
        target: LM,
        drafter: Drafter | None = None,
        batch: int = 8,
        slots: int = 1 << 15,
        sampler: Sampler | None = None,
        verify: Verifier = match,
        stats: Stats | None = None,
    ):
        if batch < 1:
            raise InputError(f"batch is {batch}: give 1 or more")
        if slots < 2:
            raise InputError(f"slots is {slots}: give 2 or more, for a prompt and a new token")
        self.target, self.slots, self.verify = target, slots, verify
        self.drafter, self.stats = drafter or Drafter(), stats if stats is not None else Stats()
        check_pair(self.drafter, verify)
        self._rows = RowPool(target, batch, slots, (sampler or Sampler()).under(target.rules()))
        self._eos = target.end_tokens
        self._started = False  # whether the drafter has started with the running rows
        self._captured = True  # whether it has seen a step of all of them, so that it can draft
        self._lock, self._step_lock = Lock(), Lock()  # for the fields below; held by the thread inside `step`
        self._waiting = deque[Request]()
        self._open: set[int] = set()  # requests that have not ended
        self._cancelled: set[int] = set()  # running requests to be ended at the next step
        self._events: list[Event] = []
        self._count, self._closed = 0, False

    def submit(
        self, prompt: Iterable[int], max_new_tokens: int = 256, seed: int = 0, eos: Iterable[int] | None = None
    ) -> int:
        """Queue a prompt (token ids) -> the id of its events. eos None: the model's end tokens. Raises InputError."""
        try:
            tokens, ends = [index(t) for t in prompt], tuple(index(t) for t in (self._eos if eos is None else eos))
        except TypeError as error:
            raise InputError(f"a prompt and its end tokens must be lists of token ids: {error}") from None
        check(self.target, [tokens], max_new_tokens, Drafter(), match)
        need = len(tokens) + max_new_tokens
        if need > self.slots:
            what = f"{len(tokens)} prompt tokens and {max_new_tokens} new ones need {need} slots"
            raise InputError(f"{what}, and a row has {self.slots}: give more slots or a shorter prompt")
        if not -(1 << 63) <= seed < 1 << 63:
            raise InputError(f"seed is {seed}: give a number of at most 63 bits")
        with self._lock:
            if self._closed:
                raise RuntimeError("the session is closed")
            self._count += 1
            self._open.add(self._count)
            self._waiting.append(Request(self._count, tokens, max_new_tokens, seed, ends))
            return self._count

    def cancel(self, id: int) -> bool:
        """End a request before the next step, unless it ends in the running one -> whether it had not ended yet."""
        with self._lock:
            if id not in self._open:
                return False
            waiting = next((r for r in self._waiting if r.id == id), None)
            if waiting is None:
                self._cancelled.add(id)
            else:
                self._waiting.remove(waiting)
                self._end(id, "cancelled")
            return True

    @property
    def running(self) -> int:
        return len(self._rows.requests)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def step(self) -> list[Event]:
        """Admit waiting requests to free rows and decode one step of all rows -> the events since the last call.

        Returns at once if there is nothing to do. A request that cannot enter fails alone. If a decoding step fails,
        all running requests fail, and the session continues with the waiting ones.
        """
        if not self._step_lock.acquire(blocking=False):
            raise RuntimeError("another thread is inside step: call it from one thread at a time")
        try:
            with torch.inference_mode():
                for b in reversed(range(self.running)):
                    if self._rows.requests[b].id in self._cancelled:
                        self._leave(b, [], "cancelled")
                self._admit()
                if self.running:
                    self._decode_step()
        finally:
            self._step_lock.release()
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> list[Event]:
        """Cancel all requests and free the cache -> the events not yet returned. Waits for a running step."""
        with self._step_lock:
            with self._lock:
                self._closed = True
                self._waiting.clear()
                for id in sorted(self._open):
                    self._end(id, "cancelled")
                events, self._events = self._events, []
            self._rows = RowPool(self.target, 1, 1, Sampler())
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, id: int, how: str, tokens: Iterable[int] = (), error: BaseException | None = None) -> None:
        """Record the last event of a request. The caller holds the lock."""
        self._open.discard(id)
        self._cancelled.discard(id)
        self._events.append(Event(id, list(tokens), how, error))

    def _next(self) -> Request | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and self._rows.free else None

    def _admit(self) -> None:
        while (request := self._next()) is not None:
            try:
                self._enter(request)
            except BaseException as error:
                if self.running and self._rows.requests[-1] is request:  # the drafter failed, after the prefill
                    self._rows.leave(self.running - 1)
                    self._started = False
                with self._lock:
                    self._end(request.id, "failed", error=error)
                if not isinstance(error, Exception):
                    raise

    def _enter(self, request: Request) -> None:
        begin = perf_counter()
        self._rows.enter(request, self.drafter.prompt_captures())
        prefilled = perf_counter()
        self.stats.prefill_s += prefilled - begin
        if self._started:
            self.drafter.enter(self._rows.seqs, self.running - 1)
        else:
            self._start()
        self.stats.start_s += perf_counter() - prefilled
        self._captured = False

    def _start(self) -> None:
        """Start the drafter with the running rows: at first, and again after it has failed."""
        self.drafter.start(self._rows.seqs)
        self._started, self._captured = True, False

    def _decode_step(self) -> None:
        begin = perf_counter()
        try:
            if not self._started:
                self._start()
            tokens = step(self.target, self.drafter, self._rows.seqs, self.verify, self.stats, self._captured).tokens
        except BaseException as error:
            self._started = False
            for b in reversed(range(self.running)):
                self._leave(b, [], "failed", error)
            if not isinstance(error, Exception):
                raise
            return
        self._captured = True
        done = self._rows.seqs.done.tolist()
        with self._lock:
            self._events += [
                Event(r.id, new)
                for r, new, over in zip(self._rows.requests, tokens, done, strict=True)
                if new and not over
            ]
        for b in reversed(range(self.running)):
            if done[b]:
                self._leave(b, tokens[b], "eos" if tokens[b][-1] in self._rows.requests[b].eos else "length")
        self.stats.decode_s += perf_counter() - begin

    def _leave(self, b: int, tokens: list[int], how: str, error: BaseException | None = None) -> None:
        """End the request in row b. A drafter that fails at this starts again before the next step."""
        request = self._rows.leave(b)
        with self._lock:
            self._end(request.id, how, tokens, error)
        if not self._started:
            return
        try:
            self.drafter.leave(self._rows.seqs, b)
            if type(self.drafter).leave is Drafter.leave:  # the default, which starts again
                self._captured = False
        except BaseException as error:
            self._started = False
            if not isinstance(error, Exception):
                raise


class RowPool:
    """Rows [0, n) of one cache are in use; when a row leaves, the last one moves to its index."""

    def __init__(self, target: LM, batch: int, slots: int, sampler: Sampler):
        self.target = target
        self.whole = Sequences.of([[0]] * batch, slots, target.new_cache(batch, slots + SPARE), sampler)
        self.requests: list[Request] = []
        self.seqs = self.whole.first(0)

    @property
    def free(self) -> int:
        return self.whole.capacity - len(self.requests)

    def enter(self, request: Request, keep: PromptSpec) -> None:
        """Prefill a prompt into the next free row. If this fails, the rows in use are unchanged."""
        s, b, prompt = self.whole, len(self.requests), request.prompt
        s.cache.length[b] = 0
        states = self.target.prefill(prompt[:-1], s.cache.row(b), keep=keep)
        s.tokens[b, : len(prompt)] = torch.tensor(prompt, device=s.tokens.device)
        s.length[b] = s.prompt[b] = len(prompt)
        s.limit[b], s.seed[b], s.eos[b], s.done[b] = request.max_new_tokens, request.seed, request.eos, False
        self.requests.append(request)
        self.seqs = s.first(len(self.requests))
        self.seqs.prompt_states[b] = states

    def leave(self, b: int) -> Request:
        """Free row b -> its request."""
        s, last, request = self.whole, len(self.requests) - 1, self.requests[b]
        if b != last:
            for rows in (s.tokens, s.length, s.limit, s.seed, s.prompt, s.done):
                rows[b] = rows[last]
            s.eos[b] = s.eos[last]
            s.cache.move(last, b)
        self.requests = without(self.requests, b)
        self.seqs = s.first(last)
        return request
