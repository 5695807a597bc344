"""Continuous batching: a row that ends leaves, a waiting prompt takes its place between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from time import monotonic

from longdraft.core.sampling import Sampler
from longdraft.core.verify import Verifier, match
from longdraft.drafters.base import Drafter
from longdraft.engine.generate import Stats, check
from longdraft.engine.session import Session
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.ops import row_seed

PATIENCE = 0.05  # seconds that running rows wait, once, for a prompt that was asked for


@dataclass
class Finished:
    """The new tokens of one prompt, by its place in the order of prompts; error: why there are not more of them."""

    index: int
    tokens: list[int]
    error: str | None = None


def serve(
    target: LM,
    prompts: Iterable[list[int]],
    drafter: Drafter | None = None,
    batch: int = 8,
    slots: int = 1 << 15,
    max_new_tokens: int = 256,
    sampler: Sampler | None = None,
    seed: int = 0,
    eos: tuple[int, ...] | None = None,
    verify: Verifier = match,
    stats: Stats | None = None,
) -> Iterator[Finished]:
    """Decode any number of prompts, at most `batch` side by side; yields each as it ends.

    Prompt i draws with row_seed(seed, i): its text is that of row i of `generate` with this seed, whoever its
    neighbours are, and what `generate` gives it alone with seed=row_seed(seed, i). eos: as in stream. slots: the
    longest prompt and its new tokens. A bad prompt, or one that fails, is yielded with its error; the others go on.
    Prompts are taken from the iterable as places become free; while it has none to give, the rows that run go on, and
    what it raises is raised when they have ended.
    """
    check(target, [[0]], max_new_tokens, drafter or Drafter(), verify)
    session = Session(target, drafter, batch, slots, sampler, verify, stats)
    source = _Listed(prompts) if isinstance(prompts, Sequence) else _Pulled(prompts)
    running: dict[int, Finished] = {}  # by the session's id
    count = 0
    try:
        while True:
            for prompt in source.take(batch - len(running), wait=not running):
                try:
                    found = session.submit(prompt, max_new_tokens, row_seed(seed, count), eos)
                    running[found] = Finished(count, [])
                except InputError as error:
                    yield Finished(count, [], str(error))
                count += 1
            if not running and source.over:
                break
            for event in session.step():
                running[event.id].tokens += event.tokens
                if event.error is not None:
                    running[event.id].error = f"{type(event.error).__name__}: {event.error}"
                if event.ended:
                    yield running.pop(event.id)
    finally:
        source.close()
        session.close()
    if source.error is not None:
        raise source.error


class _Listed:
    """Prompts that are all there: none is waited for."""

    error = None

    def __init__(self, prompts: Sequence[list[int]]):
        self._rest, self.over = iter(prompts), False

    def take(self, wanted: int, wait: bool) -> Iterator[list[int]]:
        """Up to `wanted` prompts; fewer only at the end."""
        for _ in range(wanted):
            try:
                yield next(self._rest)
            except StopIteration:
                self.over = True
                return

    def close(self) -> None: ...


class _Pulled:
    """Prompts of an iterator that may block: a thread pulls as many as were asked for and no more.

    over: it has none left, or has raised `error`. The thread is a daemon: one that blocks for ever ends with the
    process.
    """

    def __init__(self, prompts: Iterable[list[int]]):
        self.over, self.error = False, None
        self._asked, self._expected, self._closed = Semaphore(0), 0, False
        self._found = SimpleQueue[tuple[list[int] | None, BaseException | None]]()
        self._thread = Thread(target=self._pull, args=(prompts,), name="longdraft-prompts", daemon=True)
        self._thread.start()

    def _pull(self, prompts: Iterable[list[int]]) -> None:
        try:
            rest = iter(prompts)
            while self._asked.acquire() and not self._closed:
                self._found.put((next(rest), None))
        except StopIteration:
            self._found.put((None, None))
        except BaseException as error:
            self._found.put((None, error))

    def take(self, wanted: int, wait: bool) -> Iterator[list[int]]:
        """Up to `wanted` prompts; wait: for the first of them as long as it takes."""
        deadline = monotonic() + (0 if self._expected else PATIENCE)  # a thread that is late already is not waited for
        for _ in range(wanted - self._expected):
            self._asked.release()
        self._expected = max(wanted, self._expected)
        while self._expected and not self.over:
            try:
                prompt, self.error = self._found.get(timeout=None if wait else max(deadline - monotonic(), 0))
            except Empty:
                return
            self._expected, wait = self._expected - 1, False
            if prompt is None:
                self.over = True
            else:
                yield prompt

    def close(self) -> None:
        self._closed = True
        self._asked.release()
