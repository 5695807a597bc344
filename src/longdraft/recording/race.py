"""Two methods that decode one prompt in turns; each step is recorded.

So both can be watched on one clock.
"""

from __future__ import annotations

import torch

from longdraft.core import match
from longdraft.drafters.base import Drafter
from longdraft.engine.generate import Stats, step
from longdraft.engine.requests import Request
from longdraft.engine.row_pool import RowPool
from longdraft.models.lm import LM
from longdraft.prompts.prefix_cache import Prefixes
from longdraft.recording.trace import Lane, Recorder, Round, Trace


class Runner:
    """One lane of a race: a request in its own row, decoded by one drafter.

    clock: seconds of its decoding steps. Reading the prompt does not count: it is the same for all
    lanes.
    """

    def __init__(
        self,
        target: LM,
        tokenizer: object,
        drafter: Drafter,
        request: Request,
        prefixes: Prefixes | None,
        record: Lane,
    ):
        self.target = target
        self.drafter = drafter
        self.request = request
        self.prefixes = prefixes
        self.record = record
        self.stats = Stats()
        self.rows = None
        self.ready = False
        self._recorder = Recorder(drafter, self.stats, tokenizer, len(request.prompt), request.need)
        self._captured = False  # whether the drafter has seen a step, so that it can draft

    def read(self, most: int) -> int:
        """Read at most this many tokens of the prompt; at its end the lane is ready.

        Returns how many tokens are read.
        """
        if self.rows is None:
            self.rows = RowPool(self.target, 1, self.request.need, self.prefixes)
            self.rows.begin(self.request)
        self.rows.read(most, self.drafter.prompt_captures())
        if self.rows.reading is not None:
            return self.rows.reading.position
        self.drafter.verified_by(match)
        self.drafter.start(self.rows.seqs)
        self.ready = True
        return len(self.request.prompt)

    @property
    def clock(self) -> float:
        return self.stats.draft_s + self.stats.verify_s

    def step(self) -> Round:
        """Decode and record one step.

        After the last one, `record.ended` says how the lane ended.
        """
        assert self.rows is not None
        seqs = self.rows.seqs
        outcome = step(
            self.target, self.drafter, seqs, match, self.stats, self._captured, self._recorder
        )
        self._captured = True
        if bool(seqs.done[0]):
            self.record.ended = "eos" if outcome.tokens[0][-1] in self.request.eos else "length"
        [done] = self._recorder.rounds()
        self.record.rounds.append(done)
        return done


class Race:
    """A race of lanes: the one whose clock is behind takes the next step.

    So at any time both clocks show about the same. Its outputs equal those of `generate`, as a
    session's do. `step` does little at a time (`chunk` tokens of a prompt, or one decoding step),
    so that it can be called between the steps of a session.
    """

    def __init__(
        self,
        target: LM,
        tokenizer: object,
        request: Request,
        drafters: list[Drafter],
        trace: Trace,
        prefixes: Prefixes | None = None,
        chunk: int = 256,
    ):
        self.trace = trace
        self.chunk = chunk
        self.over = False
        pairs = list(zip(drafters, trace.lanes, strict=True))
        self._runners = [
            Runner(target, tokenizer, drafter, request, prefixes, lane) for drafter, lane in pairs
        ]

    @torch.inference_mode()
    def step(self) -> tuple[int, int | Round]:
        """Do a little for one lane.

        Returns the lane, and the number of the prompt's tokens that it has read or the round of its
        step.
        """
        unread = next((i for i, r in enumerate(self._runners) if not r.ready), None)
        if unread is not None:
            return unread, self._runners[unread].read(self.chunk)
        running = [i for i, r in enumerate(self._runners) if r.record.ended is None]
        lane = min(running, key=lambda i: self._runners[i].clock)
        done = self._runners[lane].step()
        self.over = all(r.record.ended is not None for r in self._runners)
        if self.over:
            self.trace.compare()
        return lane, done
