"""The work of `generate`: prefill once, decode, decode plainly too for a comparison, and make a
record.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from longdraft.cli import common
from longdraft.cli.prompts import Prompt
from longdraft.core.sampling import Sampler
from longdraft.drafters import Drafter, Oracle, PlainDecoding
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Step
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM
from longdraft.models.text import Detokenizer, text_of
from longdraft.prompts.prompt_file import Keeper
from longdraft.recording.decode_figures import DecodedRows, figures, speedups, timings, traffic
from longdraft.recording.record_origin import provenance
from longdraft.recording.trace import Lane, Recorder, Trace, new_trace

WARM = 24  # tokens decoded before a timed comparison


class Printer:
    """Prints a single row while it is decoded, and several rows one after another at the end."""

    def __init__(self, tokenizer: Any, prompts: list[Prompt]):
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.text = Detokenizer(tokenizer)

    def step(self, step: Step) -> None:
        if len(self.prompts) == 1:
            sys.stdout.write(self.text.push(step.tokens[0]))
            sys.stdout.flush()

    def end(self, rows: list[list[int]]) -> None:
        if len(self.prompts) == 1:
            print(self.text.flush())
        else:
            for prompt, row in zip(self.prompts, rows, strict=True):
                print(f"=== {prompt.name}\n{text_of(self.tokenizer, row)}")
        sys.stdout.flush()


@dataclass
class Job:
    """A method that decodes on a target; its options are valid for that target. Raises InputError
    when made.

    traced: record a trace of the first row, the only one, in `trace`; with a comparison, of plain
    decoding too. kept: where the prompt is kept.
    """

    target: LM
    tokenizer: Any
    method: MethodSpec
    sampler: Sampler
    seed: int
    accept: float | None = None
    traced: bool = False
    kept: Keeper | None = None
    trace: Trace | None = None

    def __post_init__(self) -> None:
        self.method.check(self.target, self.accept)
        self.sampler = self.sampler.under(self.target.rules())

    def drafter(self) -> Drafter:
        """The drafter; with an oracle, its drafts have a fixed size."""
        return (
            self.method.paced(self.target)
            if self.accept is None
            else self.method.build(self.target)
        )

    def run(
        self,
        prompts: list[list[int]],
        limit: int,
        eos: tuple[int, ...] | None,
        compare: bool,
        printer: Printer | None,
    ) -> dict[str, Any]:
        """Decode the prompts and return a record; after a keyboard interrupt (`interrupted`), of
        the tokens so far.

        For a comparison, plain decoding finishes before the method starts to warm up: a faulty
        drafter that changes the prompt's keys and values must not affect the output that it is
        compared with.
        """
        keep = self.drafter().prompt_captures()
        with common.reading(prompts) as tick:
            session = DecodeSession(
                self.target,
                prompts,
                limit,
                self.sampler,
                self.seed,
                eos,
                report=tick,
                keep=keep,
                kept=self.kept,
            )
        main = DecodedRows([[] for _ in prompts])
        plain = None
        interrupted = False
        try:
            if compare or self.accept is not None:
                session.seal()
                session.rows(PlainDecoding(), limit=WARM)
                plain = DecodedRows([[] for _ in prompts])
                for step in self._decode(session, "plain", PlainDecoding(), plain):
                    plain.take(step)
                session.rows(self.drafter(), limit=WARM)
            drafter = self.drafter()
            if self.accept is not None and plain is not None:
                drafter = Oracle(drafter, plain.rows, self.accept)
            for step in self._decode(session, self.method.name, drafter, main):
                main.take(step)
                if printer is not None:
                    printer.step(step)
        except KeyboardInterrupt:
            interrupted = True
        if printer is not None:
            printer.end(main.rows)
        record = self._record(session, main)
        if interrupted:
            return record | {"interrupted": True}
        return record if plain is None else record | self._comparison(session, main, plain)

    def _decode(
        self, session: DecodeSession, name: str, drafter: Drafter, output: DecodedRows
    ) -> Iterator[Step]:
        """A decode of the session, recorded as another lane of the trace if one is wanted."""
        if not self.traced:
            yield from session.decode(drafter, output.stats)
            return
        lane = Lane(method=name, options=self.method.options if name == self.method.name else {})
        if self.trace is None:
            prompt = session.prompts[0]
            limit = session.limit
            self.trace = new_trace(
                self.target, self.tokenizer, prompt, limit, self.sampler, self.seed, [lane]
            )
        else:
            self.trace.lanes.append(lane)
        prompt_tokens = self.trace.prompt_tokens
        slots = self.trace.slots
        recorder = Recorder(drafter, output.stats, self.tokenizer, prompt_tokens, slots)
        lane.ended = "cancelled"
        for step in session.decode(drafter, output.stats, watch=recorder):
            lane.rounds += recorder.rounds()
            yield step
        lane.ended = "length" if sum(len(r.tokens) for r in lane.rounds) == session.limit else "eos"
        self.trace.compare()

    def _record(self, session: DecodeSession, output: DecodedRows) -> dict[str, Any]:
        output.stats.prefill_s += session.prefill_s
        depth = self.method.chain_depth(self.target)
        record = output.describe(session.prompts, lambda row: text_of(self.tokenizer, row), depth)
        record |= {
            "method": self.method.name,
            "options": self.method.options,
            "sampler": self.sampler.described,
        }
        record |= {"pace": self.method.pace and self.accept is None, **self.method.origin}
        if self.kept is not None:
            record["known_prompt_tokens"] = sum(session.known)
        if self.method.name == "plain":
            record |= traffic(session, output)
        if self.accept is not None:
            record["oracle"] = self.accept
        return record | provenance(self.target, self.seed)

    def _comparison(
        self, session: DecodeSession, output: DecodedRows, plain: DecodedRows
    ) -> dict[str, Any]:
        plain.stats.prefill_s += session.prefill_s
        damage = session.altered()
        return {
            "plain": {"new_tokens": sum(map(len, plain.rows))}
            | figures(plain.stats)
            | traffic(session, plain),
            **speedups(timings(output.stats), [timings(plain.stats)]),
            "equal": output.rows == plain.rows and damage is None,
            "first_difference": first_difference(session, plain.rows, output.rows),
            **({"damage": damage} if damage else {}),
        }
