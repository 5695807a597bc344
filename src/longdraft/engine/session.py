"""A session: requests of many callers in one batch.

Each of them enters, ends and fails independently of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Self

import torch

from longdraft.core import UNBOUNDED, Sampler, Verifier, match
from longdraft.drafters.base import Drafter
from longdraft.drafters.plain import PlainDecoding
from longdraft.drafters.step import clock
from longdraft.engine.admission import Admission
from longdraft.engine.generate import Stats, step
from longdraft.engine.newest_step import NewestStep
from longdraft.engine.reading_pace import ReadingPace
from longdraft.engine.requests import Event, Request, held_up, make_request
from longdraft.engine.row_pool import RowPool
from longdraft.engine.session_drafters import SessionDrafters
from longdraft.errors import Busy, InputError
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import Prefixes

IDLE_PREFILL = 1024  # tokens to prefill between cancellation checks when idle


class Session:
    """A batch that requests enter and leave.

    Every request that `submit` accepts gets exactly one event in which it ends, whatever happens to
    the others.

    At most `batch` requests run at once, each in a row with `slots` slots for its prompt and its
    new tokens; the others wait in order of submission, but a short prompt may overtake a long one
    that is being read (admission.py). `submit` and `cancel` may be called from any thread at any
    time; `step` from one thread at a time.

    If the target is exact (LM.exact), a request's output equals that of `generate` with the same
    sampler and seed, whatever runs beside it and whatever `prefixes` holds. Otherwise the two can
    differ at ties within rounding, because a pass over more rows rounds differently; prompts are
    read alike.

    While requests run, a step reads at most `chunk` tokens of the next prompt, rounded up to whole
    LM.prompt_blocks, so a long prompt delays them by no more than that at a time. Steps have at
    least a quarter of the time (reading_pace.py); now: the seconds of a clock. queue: how many
    requests may wait for others to end, so without those that rows and slots are free for; None:
    any number. total: how many slots the running requests may need together; None: batch * slots.
    prefixes: where keys and values of earlier requests are kept for later ones. others: drafters
    that requests may name instead of the session's own (see SessionDrafters). watch: called by
    `step` with an event for each part of a prompt that was read.
    """

    watch: Callable[[Event], None] | None = None

    def __init__(
        self,
        target: LM,
        drafter: Drafter | None = None,
        batch: int = 8,
        slots: int = 1 << 15,
        sampler: Sampler | None = None,
        verify: Verifier = match,
        stats: Stats | None = None,
        chunk: int = 1024,
        queue: int | None = None,
        total: int | None = None,
        prefixes: Prefixes | None = None,
        now: Callable[[], float] | None = None,
        others: Mapping[str, Drafter] | None = None,
    ):
        for name, value, least in (("batch", batch, 1), ("slots", slots, 2), ("chunk", chunk, 1)):
            if value < least:  # a row has at least a prompt token and a new one
                raise InputError(f"{name} is {value}: give {least} or more")
        self.target = target
        self.batch = batch
        self.slots = slots
        self.verify = verify
        self.chunk = chunk
        self.queue = queue
        self.total = batch * slots if total is None else total
        self.drafter = drafter or PlainDecoding()
        self.stats = stats if stats is not None else Stats()
        self._drafters = SessionDrafters(self.drafter, others or {}, verify)
        self.sampler = (sampler or Sampler()).under(target.rules())
        self._rows = RowPool(target, batch, slots, prefixes)
        self.prefixes = prefixes
        self._eos = target.end_tokens
        self._newest = NewestStep()
        self._pace = ReadingPace(now or partial(clock, target.device))
        self._started = False  # whether the drafter has started with the running rows
        self._captured = True  # whether it has seen a step of all of them, so that it can draft
        self._step_lock = Lock()  # held by the thread inside `step`
        self._lock = Lock()  # for the fields below
        self._admission = Admission(self.total, chunk)
        self._count = 0
        self._closed = False
        self._open = dict[int, int]()  # requests that have not ended, and the slots that each needs
        self._cancelled = set[int]()  # of these, the ones to be ended at the next step
        self._events: list[Event] = []

    def submit(
        self,
        prompt: Iterable[int],
        max_new_tokens: int = 256,
        seed: int = 0,
        eos: Iterable[int] | None = None,
        sampler: Sampler | None = None,
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        owner: str = "",
        method: str = "",
        deepest: int = UNBOUNDED,
    ) -> int:
        """Queue a prompt (token ids), and return the id of its events.

        eos None: the model's end tokens. sampler None: the session's. logprobs: the log-probability
        of every new token before the sampler changed it, and as many of the most likely tokens';
        prompt_logprobs: also of the prompt's. owner: keys and values are reused among requests of
        one owner. method: the name of one of the session's other drafters; deepest: how deep its
        drafts may be, 0 for plain decoding. Neither changes the output. Raises InputError for a
        request that can never run, and Busy if the queue is full.
        """
        room = min(self.slots, self.total)
        ends = self._eos if eos is None else eos
        how = self.sampler if sampler is None else sampler
        deepest = self._drafters.deepest(method, deepest)
        request = make_request(
            self.target, room, prompt, max_new_tokens, seed, ends, how, logprobs, prompt_logprobs
        )
        with self._lock:
            if self._closed:
                raise RuntimeError("the session is closed")
            waiting = [*self._admission.waiting, request]
            held = held_up(waiting, self._open, self._rows.whole.capacity, self.total)
            if self.queue is not None and held > self.queue:
                raise Busy(
                    f"{self.queue} requests are waiting, which is the limit: try again later"
                )
            self._count += 1
            self._open[self._count] = request.need
            named = replace(request, id=self._count, owner=owner, method=method, deepest=deepest)
            self._admission.waiting.append(named)
            return self._count

    def cancel(self, id: int) -> bool:
        """End a request before the next step, unless it ends in the running one.

        Returns whether it had not ended yet.
        """
        with self._lock:
            if id not in self._open:
                return False
            if self._admission.take(id) is None:
                self._cancelled.add(id)
            else:
                self._end(id, "cancelled")
            return True

    def begun(self, id: int) -> bool:
        """Whether a request has left the queue: its prompt is being read, or was."""
        with self._lock:
            return all(request.id != id for request in self._admission.waiting)

    @property
    def running(self) -> int:
        return len(self._rows.requests)

    @property
    def waiting(self) -> int:
        """The number of requests that do not run yet, with those whose prompts are being read."""
        return len(self._admission.waiting) + len(self._rows.unread)

    @property
    def needed(self) -> int:
        """The slots that the requests in rows may fill, out of `total`."""
        return self._rows.needed

    def step(self) -> list[Event]:
        """Admit waiting requests to free rows and decode one step of all rows.

        Returns the events since the last call, at once if there is nothing to do. A request that
        cannot enter fails alone. If a decoding step fails, all running requests fail, and the
        session continues with the waiting ones.
        """
        if not self._step_lock.acquire(blocking=False):
            raise RuntimeError("another thread is inside step: call it from one thread at a time")
        try:
            with torch.inference_mode():
                self._end_cancelled()
                if self._pace.may_read(self.running):
                    with self._pace.reading(self.running):
                        self._admit()
                if self.running:
                    with self._pace.stepping():
                        self._decode_step()
        finally:
            self._step_lock.release()
        with self._lock:
            events = self._events
            self._events = []
        return events

    def close(self) -> list[Event]:
        """Cancel all requests and free the cache.

        Returns the events not yet returned. Waits for a running step.
        """
        with self._step_lock:
            with self._lock:
                self._closed = True
                self._admission.waiting.clear()
                for id in sorted(self._open):
                    self._end(id, "cancelled")
                events = self._events
                self._events = []
            self._rows = RowPool(self.target, 1, 1)
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, id: int, how: str, error: BaseException | None = None) -> None:
        """Record the last event of a request, without tokens.

        The caller holds the lock.
        """
        self._last(Event(id, [], how, error))

    def _last(self, event: Event) -> None:
        """Record the last event of a request.

        The caller holds the lock.
        """
        self._open.pop(event.id, None)
        self._cancelled.discard(event.id)
        self._rows.reads.pop(event.id, None)
        self._events.append(event)

    def _end_cancelled(self) -> None:
        for b in reversed(range(self.running)):
            if self._rows.requests[b].id in self._cancelled:
                self._leave(b, how="cancelled")
        for entering in self._rows.unread:
            if entering.id not in self._cancelled:
                continue
            failure = None
            try:
                self._rows.stop_reading(entering)
            except Exception as error:
                failure = error
            with self._lock:
                self._end(entering.id, "cancelled", failure)

    def _next(self) -> Request | None:
        """The request whose prompt is to be read next. None: there is no room for it."""
        with self._lock:
            return self._admission.next(self._rows, self._drafters)

    def _admit(self) -> None:
        """Read waiting prompts.

        The first one is read whole if nothing runs, and `chunk` tokens of the others in all. After
        a prompt that has overtaken another one, its row gets a step first.
        """
        left = self.chunk
        while left > 0 and (request := self._next()) is not None:
            try:
                if self._rows.entering is not request:
                    if self._drafters.choose(request, self._rows):
                        self._started = False
                    self._rows.begin(request)
                if self.running:
                    left -= self._read(left)
                else:
                    self._read(IDLE_PREFILL)
                if self._rows.entering is request:
                    self._end_cancelled()
                    continue
                self._enter()
                if self._rows.entering is not None:
                    return
            except BaseException as error:
                if self._rows.entering is request:
                    self._rows.drop()
                elif self.running and self._rows.requests[-1] is request:
                    # The drafter failed, after the prefill.
                    self._rows.leave(self.running - 1)
                    self._started = False
                with self._lock:
                    self._end(request.id, "failed", error=error)
                if not isinstance(error, Exception):
                    raise

    def _read(self, most: int) -> int:
        """Read at most this many tokens of the entering prompt, which runs once it is read.

        Returns how many were read.
        """
        begin = perf_counter()
        reading = self._rows.reading
        assert reading is not None
        count = self._rows.read(most, self._drafters.now.prompt_captures())
        self.stats.prefill_s += perf_counter() - begin
        if self.watch is not None:
            self.watch(reading.progress())
        return count

    def _enter(self) -> None:
        """Tell the drafter about the row that has just been read."""
        prefilled = perf_counter()
        if self._started:
            self._drafters.now.enter(self._rows.seqs, self.running - 1)
        else:
            self._start()
        self.stats.start_s += perf_counter() - prefilled
        self.stats.predicted_speedup = self._drafters.now.forecast
        self._captured = False

    def _start(self) -> None:
        """Start the drafter with the running rows: at first, and again after it has failed."""
        self._drafters.now.verified_by(self.verify)
        self._drafters.now.start(self._rows.seqs)
        self._started = True
        self._captured = False

    def _decode_step(self) -> None:
        begin = perf_counter()
        try:
            if self._drafters.rest(self._rows):
                self._started = False
            if not self._started:
                self._start()
            watch = partial(self._newest.take, requests=self._rows.requests)
            seqs = self._rows.seqs
            drafter = self._drafters.steps
            outcome = step(
                self.target, drafter, seqs, self.verify, self.stats, self._captured, watch
            )
        except BaseException as error:
            self._started = False
            for b in reversed(range(self.running)):
                self._leave(b, how="failed", error=error)
            if not isinstance(error, Exception):
                raise
            return
        self._captured = True
        done = self._rows.seqs.done.tolist()
        events = list[Event]()
        for b, over in enumerate(done):
            request = self._rows.requests[b]
            prompt = self._rows.reads.pop(request.id, None)
            events.append(self._newest.event(b, request, outcome, over, prompt))
        with self._lock:
            self._events += [e for e in events if e.tokens and e.ended is None]
        for b in reversed(range(self.running)):
            if done[b]:
                self._leave(b, events[b], "failed", outcome.failed.get(b))
        self.stats.decode_s += perf_counter() - begin

    def _leave(
        self, b: int, last: Event | None = None, how: str = "", error: BaseException | None = None
    ) -> None:
        """End the request in row b.

        A drafter that fails at this starts again before the next step.
        """
        request = self._rows.leave(b)
        with self._lock:
            self._last(Event(request.id, [], how, error) if last is None or error else last)
        if not self._started:
            return
        try:
            drafter = self._drafters.now
            drafter.leave(self._rows.seqs, b)
            if type(drafter).leave is Drafter.leave:  # the default, which starts again
                self._captured = False
        except BaseException as error:
            self._started = False
            if not isinstance(error, Exception):
                raise
