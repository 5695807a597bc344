"""Continuous batching: when a row ends, the next prompt takes its place before the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from time import monotonic

from longdraft.core import Sampler, Verifier, match
from longdraft.drafters.base import Drafter
from longdraft.drafters.plain import PlainDecoding
from longdraft.engine.generate import Stats, check
from longdraft.engine.session import Session
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.ops import row_seed

PROMPT_WAIT_S = 0.05  # how long running rows wait for a prompt that was requested


@dataclass
class Finished:
    """The new tokens of the prompt with this index; error: why it failed, if it did."""

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
    first: int = 0,
) -> Iterator[Finished]:
    """Decode any number of prompts, at most `batch` at once; yields each as it ends.

    Batching never changes a prompt's output (if the target is not exact: except at ties within
    rounding): prompt i draws with row_seed(seed, i), like row i of `generate` with this seed, or
    like the prompt alone with seed=row_seed(seed, i). eos: as for stream. slots: room for the
    longest prompt and its new tokens. A bad or failing prompt is yielded with its error, and the
    others continue. Prompts are taken from the iterable as rows become free. While it blocks, the
    running rows continue; an exception that it raises is raised after they have ended. first: the
    index of the first prompt, to continue an earlier run.
    """
    check(target, [[0]], max_new_tokens, drafter or PlainDecoding(), verify)
    session = Session(target, drafter, batch, slots, sampler, verify, stats)
    source = _ListedPrompts(prompts) if isinstance(prompts, Sequence) else _PulledPrompts(prompts)
    running: dict[int, Finished] = {}  # by the session's id
    count = first
    try:
        while True:
            for prompt in source.take(batch - len(running), wait=not running):
                try:
                    request_id = session.submit(prompt, max_new_tokens, row_seed(seed, count), eos)
                    running[request_id] = Finished(count, [])
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


class _ListedPrompts:
    """The prompts of a list, for which nobody has to wait."""

    error = None

    def __init__(self, prompts: Sequence[list[int]]):
        self._rest = iter(prompts)
        self.over = False

    def take(self, wanted: int, wait: bool) -> Iterator[list[int]]:
        """The next `wanted` prompts; fewer only at the end."""
        taken = list(islice(self._rest, wanted))
        self.over = len(taken) < wanted
        return iter(taken)

    def close(self) -> None: ...


class _PulledPrompts:
    """The prompts of an iterator that may block.

    A daemon thread takes as many as were requested, and no more. over: it has none left, or it has
    raised `error`.
    """

    def __init__(self, prompts: Iterable[list[int]]):
        self.over = False
        self.error = None
        self._requested = Semaphore(0)
        self._expected = 0
        self._closed = False
        self._pulled = SimpleQueue[tuple[list[int] | None, BaseException | None]]()
        self._thread = Thread(
            target=self._pull, args=(prompts,), name="longdraft-prompts", daemon=True
        )
        self._thread.start()

    def _pull(self, prompts: Iterable[list[int]]) -> None:
        try:
            rest = iter(prompts)
            while self._requested.acquire() and not self._closed:
                self._pulled.put((next(rest), None))
        except StopIteration:
            self._pulled.put((None, None))
        except BaseException as error:
            self._pulled.put((None, error))

    def take(self, wanted: int, wait: bool) -> Iterator[list[int]]:
        """Up to `wanted` prompts.

        wait: block until the first of them is there.
        """
        # no second wait for the same prompt
        deadline = monotonic() + (0 if self._expected else PROMPT_WAIT_S)
        for _ in range(wanted - self._expected):
            self._requested.release()
        self._expected = max(wanted, self._expected)
        while self._expected and not self.over:
            try:
                left = None if wait else max(deadline - monotonic(), 0)
                prompt, self.error = self._pulled.get(timeout=left)
            except Empty:
                return
            self._expected -= 1
            wait = False
            if prompt is None:
                self.over = True
            else:
                yield prompt

    def close(self) -> None:
        self._closed = True
        self._requested.release()
