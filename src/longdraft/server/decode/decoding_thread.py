"""The thread that decodes, and its interface to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from longdraft.engine.session import Event, Session
from longdraft.errors import Busy
from longdraft.ops.threads import pinned


class Stream:
    """The events of one request, in order, for one reader in the event loop.

    Close it if the reader stops early. progress: whether it gets events about its prompt, too.
    """

    progress = False

    def __init__(self, engine: DecodingThread, id: int):
        self.engine = engine
        self.id = id
        self.ended = False
        self.events = asyncio.Queue[Event]()

    @property
    def begun(self) -> bool:
        """Whether the request's prompt is being read, or was."""
        return self.engine.session.begun(self.id)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self.ended:
            event = await self.events.get()
            self.ended = event.ended is not None
            yield event

    def close(self) -> None:
        """Cancel the request if it still runs."""
        self.engine.forget(self)


class SideTask(Protocol):
    """Something else that decodes on the same model, a little at a time."""

    closed: bool  # nothing more is to be done

    def step(self) -> bool:
        """Do a little, in the decoding thread, unless it is closed.

        Returns whether there is more to do. Raises nothing.
        """
        ...

    def close(self) -> None:
        """End early. Called in the event loop's thread, perhaps during a step."""
        ...


class DecodingThread:
    """Steps a session in its own thread while there is work.

    A stream gets every event of its request. A task, if there is one, takes turns with the session:
    a step each. alone: whether no other engine decodes in this process, so that its threads may be
    pinned.

    Call everything from the event loop's thread. failure: what ended the thread, after which every
    stream ends with it and nothing is accepted; None as long as the thread runs.
    """

    def __init__(self, session: Session, alone: bool = True):
        self.session = session
        self.alone = alone
        self.failure: BaseException | None = None
        self._streams: dict[int, Stream] = {}
        self._task: SideTask | None = None
        self._work = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="longdraft-decode", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = torch.get_num_threads()
        self.session.watch = self._watch
        self._thread.start()

    @property
    def open(self) -> int:
        """The number of requests that have not ended."""
        return len(self._streams)

    def submit(self, **request: Any) -> Stream:
        """Submit a request to the session, and return its events.

        Raises the errors of Session.submit.
        """
        if self.failure is not None or self._stopping:
            raise RuntimeError("the engine has stopped")
        stream = Stream(self, self.session.submit(**request))
        self._streams[stream.id] = stream
        self._work.set()
        return stream

    def forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.id, None) is not None and not stream.ended:
            self.session.cancel(stream.id)
            self._work.set()

    def alternate(self, task: SideTask) -> None:
        """Let this task take turns with the session.

        Raises Busy if there is one already.
        """
        if self.failure is not None or self._stopping:
            raise RuntimeError("the engine has stopped")
        if self._task is not None and not self._task.closed:
            raise Busy("another trace is being recorded: try again when it has ended")
        self._task = task
        self._work.set()

    def cancel_all(self) -> None:
        """End all requests now, and the task."""
        self._close_task()
        for id in list(self._streams):
            self.session.cancel(id)
        self._work.set()

    async def stop(self) -> None:
        """End the thread and all requests."""
        self._stopping = True
        self._close_task()
        self._work.set()
        await asyncio.to_thread(self._thread.join)
        self._deliver(self.session.close())

    def _run(self) -> None:
        assert self._loop is not None
        # OpenMP has a number, and a pool, for each thread that computes
        torch.set_num_threads(self._threads)
        try:
            # Not by the thread that loaded the model: this one would share its processor.
            with pinned() if self.alone else nullcontext():
                while not self._stopping:
                    self._step()
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _watch(self, event: Event) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._report, event)

    def _step(self) -> None:
        """Take one step of the session and one of the task, or wait for work."""
        assert self._loop is not None
        task = self._task
        busy = self.session.running or self.session.waiting
        if task is None and not busy:
            self._work.wait()
            self._work.clear()
        # Without requests too: those that were cancelled while they waited end here.
        if events := self.session.step():
            self._loop.call_soon_threadsafe(self._deliver, events)
        if task is not None and not task.step():
            self._loop.call_soon_threadsafe(self._drop, task)

    def _drop(self, task: SideTask) -> None:
        if self._task is task:
            self._task = None

    def _close_task(self) -> None:
        if self._task is not None:
            self._task.close()

    def _report(self, event: Event) -> None:
        """Deliver an event about a prompt to a stream that wants it."""
        stream = self._streams.get(event.id)
        if stream is not None and stream.progress:
            stream.events.put_nowait(event)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            stream = self._streams.get(event.id)
            if stream is not None:
                stream.events.put_nowait(event)
                if event.ended is not None:
                    del self._streams[event.id]

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._close_task()
        self._deliver([Event(id, [], "failed", error) for id in list(self._streams)])
