"""The rows of a session: the request in each row of the cache, and the prompts being read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from longdraft.core import KVCache, PromptSpec, RowSamplers, Sampler, Sequences, Tree, without
from longdraft.engine.generate import planned
from longdraft.engine.requests import Event, PromptRead, ReadingProgress, Request
from longdraft.engine.token_logprobs import TokenLogprobs, token_logprobs
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import Prefixes
from longdraft.prompts.remains import Remains

SPARE = 128  # slots of a row for the nodes of a draft tree
SCORED = 128  # prompt tokens of a pass that keeps the logits of all of them


@dataclass
class EnteringPrompt:
    """A prompt whose first `position` tokens are in row `row` of the cache.

    kept: how many of them are in the prefix cache. states: of the last ones that the drafter wants.
    begun: when reading began. held_until: the position before which no prompt may overtake it.
    """

    request: Request
    position: int
    known: int
    kept: int
    row: int = 0
    begun: float = 0.0
    held_until: int = 0
    states: dict[int, Tensor] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many tokens are still to be read; the first step reads the last one."""
        return len(self.request.prompt) - 1 - self.position

    def keep(self, states: dict[int, Tensor], count: int) -> None:
        """Add the states of tokens that have been read; the last `count` of all stay.

        Layers of which these tokens have no states are dropped, because a later part would follow a
        gap. The drafter in use may change while a prompt is read.
        """
        added = dict[int, Tensor]()
        for layer, new in states.items():
            old = self.states.get(layer)
            added[layer] = (new if old is None else torch.cat([old, new], 1))[:, -count:]
        self.states = added

    def progress(self) -> Event:
        total = len(self.request.prompt)
        done = self.position if self.left else total  # the first step reads the last token
        seconds = perf_counter() - self.begun
        return Event(self.request.id, [], reading=ReadingProgress(total, self.known, done, seconds))


class RowPool:
    """The rows of one cache: rows [0, n) run, and prompts are read into later ones.

    When a row leaves, the last one moves to its index. A prompt is read into row n, unless rows
    leave meanwhile, and moves to the row after the running ones when it begins to run. A prompt
    that is begun while another one is read pauses that one, which keeps its slots in the last row
    of the cache. A prompt's slots hold no other owner's keys (remains.py). Pools of one target may
    share `prefixes`.

    A prompt's keys have the bits that `generate` gives them: it is read in whole blocks of
    LM.prompt_block, and only keys of these blocks are kept for later prompts. reads: the facts
    about the prompts that were read, by request, until someone takes them.
    """

    paused: EnteringPrompt | None = None  # until the one being read runs or is dropped

    def __init__(self, target: LM, batch: int, slots: int, prefixes: Prefixes | None = None):
        self.target = target
        self.prefixes = prefixes
        if prefixes is not None:
            prefixes.attach(target)
        samplers = RowSamplers([Sampler()] * batch)
        self.whole = Sequences.of(
            [[0]] * batch, slots, target.new_cache(batch, slots + SPARE), samplers
        )
        self.remains = Remains(self.whole.cache, SPARE)
        self.samplers = samplers.samplers
        self.requests: list[Request] = []
        self.seqs = self.whole.first(0)
        self.reading: EnteringPrompt | None = None
        self.reads: dict[int, PromptRead] = {}

    @property
    def entering(self) -> Request | None:
        """The request whose prompt is being read."""
        reading = self.reading  # another thread may ask while the prompt begins to run
        return None if reading is None else reading.request

    @property
    def unread(self) -> list[Request]:
        """The requests whose prompts are being read: the entering one, and then the paused one."""
        return [r.request for r in (self.reading, self.paused) if r is not None]

    @property
    def free(self) -> int:
        return self.whole.capacity - len(self.requests) - len(self.unread)

    @property
    def needed(self) -> int:
        """The slots that the requests in rows may fill."""
        return sum(r.need for r in [*self.requests, *self.unread])

    @property
    def is_drafted(self) -> bool:
        """Whether a request in a row, also one whose prompt is being read, may have drafts."""
        return any(request.deepest for request in [*self.requests, *self.unread])

    def to_read(self, request: Request) -> int:
        """How many tokens of a waiting request's prompt are not in the prefix cache now."""
        count = len(request.prompt)
        if self.prefixes is None or request.prompt_logprobs:
            return count
        return count - self.prefixes.known(
            request.prompt[:-1], self.target.prompt_block, self._owner(request)
        )

    def begin(self, request: Request) -> None:
        """Begin to read a prompt into the next free row, after the part that is known.

        A prompt that is being read is paused until the new one runs or is dropped. If this fails,
        it goes on.
        """
        assert self.paused is None
        begun = perf_counter()
        b = len(self.requests)
        overtaken = self.reading
        if overtaken is not None and overtaken.row == b:
            self._move(overtaken, self.whole.capacity - 1)
        row = self.whole.cache.row(b)
        row.clear()
        self.remains.enter(b, request.owner, len(request.prompt) - 1)
        row.keep_checkpoints(self.target.checkpoints if self.prefixes is not None else 0)
        row.planned.fill_(planned(len(request.prompt), request.max_new_tokens))
        known = 0
        if self.prefixes is not None and not request.prompt_logprobs:
            try:
                known = self.prefixes.load(
                    request.prompt[:-1], row, self.target.prompt_block, self._owner(request)
                )
            except BaseException:
                self.remains.written(b, len(request.prompt))
                raise
        self.remains.written(b, known)
        self.paused = overtaken
        self.reading = EnteringPrompt(request, known, known, known, b, begun)

    def read(self, most: int, keep: PromptSpec) -> int:
        """Read at most this many tokens of the prompt, and the rest of their block.

        Returns how many. After the prompt's last token the row runs. Until then, other prompts can
        load what was read up to the last checkpoint. If this fails, the rows in use are unchanged.
        """
        reading = self.reading
        assert reading is not None
        prompt = reading.request.prompt
        row = self.whole.cache.row(reading.row)
        block = self.target.prompt_block
        end = min(len(prompt) - 1, -(-(reading.position + most) // block) * block)
        count = end - reading.position
        self.remains.written(reading.row, end)
        if reading.request.prompt_logprobs:
            reading.logprobs += self._scored(
                prompt, reading.position, end, row, reading.request.logprobs or 0
            )
        else:
            reading.keep(
                self.target.prefill(prompt[reading.position : end], row, keep=keep), keep.count
            )
        reading.position = end
        if reading.left == 0:
            self._run(reading)
        else:
            self._keep_reading(reading, self.target.checkpoints)
        return count

    def _keep_reading(self, reading: EnteringPrompt, every: int) -> None:
        """Keep a multiple of `every` of the tokens that were read, if there are more of them now.

        Each call costs time for all tokens, kept ones too, so `every` must not be small.
        """
        end = reading.position - reading.position % every
        if end > reading.kept:
            reading.kept = end
            read = reading.request.prompt[:end]
            self._keep(read, reading.row, self._owner(reading.request), complete=False)

    def drop(self, request: Request | None = None) -> EnteringPrompt:
        """Forget a prompt that is being read or paused; None: the one being read.

        A paused one goes on if another is dropped. Returns what was read of the dropped one.
        """
        paused = self.paused
        reading = self.reading
        assert reading is not None
        self.paused = None
        if paused is not None and paused.request is request:
            return paused
        self.reading = paused
        return reading

    def stop_reading(self, request: Request | None = None) -> None:
        """Drop a prompt as `drop` does, but keep what was read of it for later prompts."""
        self._keep_reading(self.drop(request), 1)

    def leave(self, b: int) -> Request:
        """Free row b, and return its request.

        Its text is kept for later prompts.
        """
        s = self.whole
        last = len(self.requests) - 1
        request = self.requests[b]
        self.remains.leave(b)
        # With larger blocks, keys that were decoded are not those of a prompt.
        if self.target.prompt_block == 1:
            self._keep(s.tokens[b, : int(s.cache.length[b])].tolist(), b, self._owner(request))
        if b != last:
            for rows in (s.tokens, s.length, s.limit, s.seed, s.prompt, s.done):
                rows[b] = rows[last]
            s.eos[b] = s.eos[last]
            s.deepest[b] = s.deepest[last]
            self.samplers[b] = self.samplers[last]
            self.remains.move(last, b)
        self.requests = without(self.requests, b)
        self.seqs = s.first(last)
        return request

    def _owner(self, request: Request) -> str:
        """The owner of the earlier prompts that it may use, with the same rotations."""
        rotation = self.target.rotation(planned(len(request.prompt), request.max_new_tokens))
        return f"{rotation} {request.owner}" if rotation else request.owner

    def _move(self, reading: EnteringPrompt, b: int) -> None:
        """Go on with a prompt in row b, which is free."""
        self.remains.move(reading.row, b)
        reading.row = b

    def _run(self, reading: EnteringPrompt) -> None:
        """Let the row that was read run."""
        s = self.whole
        b = len(self.requests)
        if reading.row != b:
            self._move(reading, b)
        request = reading.request
        prompt = request.prompt
        s.tokens[b, : len(prompt)] = torch.tensor(prompt, device=s.tokens.device)
        s.length[b] = len(prompt)
        s.prompt[b] = len(prompt)
        s.limit[b] = request.max_new_tokens
        s.seed[b] = request.seed
        s.eos[b] = request.eos
        s.deepest[b] = request.deepest
        s.done[b] = False
        self.samplers[b] = request.sampler
        self._keep(prompt[:-1], b, self._owner(request))
        logprobs = reading.logprobs if request.prompt_logprobs else None
        self.reads[request.id] = PromptRead(reading.known, logprobs)
        self.requests.append(request)
        self.seqs = s.first(len(self.requests))
        self.drop()
        self.seqs.prompt_states[b] = reading.states

    def _keep(self, tokens: list[int], b: int, owner: str, complete: bool = True) -> None:
        """Keep the keys of row b's first tokens for its owner's later prompts.

        Only whole prompt blocks are kept. complete: False while more of the prompt is to be read.
        """
        if self.prefixes is not None:
            whole = len(tokens) - len(tokens) % self.target.prompt_block
            self.prefixes.store(tokens[:whole], self.whole.cache.row(b), owner, complete)

    def _scored(
        self, prompt: list[int], begin: int, end: int, row: KVCache, top: int
    ) -> list[TokenLogprobs]:
        """Read prompt[begin:end]; returns the log-probabilities of the tokens after each."""
        if begin == end:  # a prompt of one token, which the first step reads
            return []
        scored = []
        following = torch.tensor(prompt[begin + 1 : end + 1], device=self.target.device)
        for logits in self._logits(prompt[begin:end], row):
            scored += token_logprobs(
                logits, following[len(scored) : len(scored) + len(logits)], top
            )
        return scored

    def _logits(self, tokens: list[int], row: KVCache) -> Iterator[Tensor]:
        """Read tokens; yields the logits after each of them, [n,V] for at most SCORED at a time."""
        if self.target.prompt_block == 1:
            for part in torch.tensor([tokens], device=self.target.device).split(SCORED, 1):
                with row.appending(part.shape[1]):
                    logits = self.target(Tree.chain(part), row)[0]
                yield logits
            return
        last = self.target.depth  # read as other prompts are, so the logits come from its states
        states = self.target.prefill(tokens, row, keep=PromptSpec((last,), len(tokens)))[last][0]
        yield from map(self.target.head, states.split(SCORED))
