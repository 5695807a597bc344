"""One run of `generate`: prefill once, decode (twice where it is compared), and say what was measured."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from longdraft.bench.run import diversity, outcome
from longdraft.cli.prompts import Prompt
from longdraft.cli.show import Detokenizer, text_of
from longdraft.core.sampling import Sampler
from longdraft.drafters import Drafter, Oracle
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Stats, Step
from longdraft.engine.rates import speedups, timings
from longdraft.engine.records import bandwidth, bytes_per_step, provenance
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM

WARM = 24  # tokens decoded before a comparison is timed


class Printer:
    """Writes a lone row as it comes; several rows one after the other, at the end."""

    def __init__(self, tokenizer: Any, prompts: list[Prompt]):
        self.tokenizer, self.prompts = tokenizer, prompts
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
class Run:
    """What one method gave, as far as it came."""

    rows: list[list[int]]
    stats: Stats = field(default_factory=Stats)

    def take(self, step: Step) -> None:
        for row, tokens in zip(self.rows, step.tokens, strict=True):
            row += tokens

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second from the end of the target's prefill on."""
        return timings(self.stats)["tokens_per_s"]


@dataclass
class Outcome:
    record: dict[str, Any]
    interrupted: bool

    @property
    def failed(self) -> bool:
        """Whether the comparison found damage, or a difference where passes are exact."""
        return "damage" in self.record or (self.record["exact"] and self.record.get("equal") is False)


@dataclass
class Job:
    target: LM
    tokenizer: Any
    method: MethodSpec
    sampler: Sampler
    seed: int
    accept: float | None = None

    def __post_init__(self) -> None:
        self.drafter()  # bad options are found before any work
        name, gamma = self.method.name, self.method.gamma
        if self.accept is None:
            return
        if gamma is None:
            raise InputError(
                f"--accept needs a method that drafts a chain of fixed length, such as vegas; {name} does not"
            )
        if not 0 <= self.accept <= gamma:
            raise InputError(f"--accept is {self.accept:g}, and {name} drafts {gamma} a step: give 0 to {gamma}")

    def drafter(self) -> Drafter:
        """At a stated acceptance every step drafts what the options say."""
        return self.method.paced(self.target) if self.accept is None else self.method.build(self.target)

    def run(
        self, prompts: list[list[int]], limit: int, eos: tuple[int, ...] | None, compare: bool, printer: Printer | None
    ) -> Outcome:
        """Decode; plain decoding comes first where it is asked for. A keyboard interrupt ends it with what there is.

        Plain decoding is over before the method runs at all, its warming up included: what a faulty drafter does to the
        prompt's keys and values must not reach the text that it is compared with.
        """
        runs = DecodeSession(self.target, prompts, limit, self.sampler, self.seed, eos)
        main, plain, interrupted = Run([[] for _ in prompts]), None, False
        try:
            if compare or self.accept is not None:
                runs.seal()
                runs.rows(Drafter(), limit=WARM)
                plain = Run([[] for _ in prompts])
                for step in runs.decode(Drafter(), plain.stats):
                    plain.take(step)
                runs.rows(self.drafter(), limit=WARM)
            drafter = self.drafter()
            if self.accept is not None and plain is not None:
                drafter = Oracle(drafter, plain.rows, self.accept)
            for step in runs.decode(drafter, main.stats):
                main.take(step)
                if printer is not None:
                    printer.step(step)
        except KeyboardInterrupt:
            interrupted = True
        if printer is not None:
            printer.end(main.rows)
        record = self._record(runs, main)
        if plain is not None and not interrupted:
            record |= self._comparison(runs, main, plain)
        return Outcome(record | ({"interrupted": True} if interrupted else {}), interrupted)

    def _record(self, runs: DecodeSession, run: Run) -> dict[str, Any]:
        one = len(run.rows) == 1
        per_row = {
            "text": [text_of(self.tokenizer, r) for r in run.rows],
            "token_ids": run.rows,
            "prompt_tokens": [len(p) for p in runs.prompts],
            "new_tokens": [len(r) for r in run.rows],
        }
        record: dict[str, Any] = {k: v[0] if one else v for k, v in per_row.items()}
        run.stats.prefill_s += runs.prefill_s
        record |= {"method": self.method.name, "options": self.method.options, "sampler": asdict(runs.sampler)}
        record["pace"] = self.method.pace and self.accept is None
        record |= self.method.origin
        record |= outcome(run.stats, self.method.gamma or 0) | diversity(run.rows)
        if self.method.name == "plain":
            record |= traffic(runs, run)
        if self.accept is not None:
            record["oracle"] = self.accept
        return record | provenance(self.target, self.seed)

    def _comparison(self, runs: DecodeSession, run: Run, plain: Run) -> dict[str, Any]:
        plain.stats.prefill_s += runs.prefill_s
        damage = runs.altered()
        return {
            "plain": {"new_tokens": sum(map(len, plain.rows))} | outcome(plain.stats, 0) | traffic(runs, plain),
            **speedups(timings(run.stats), [timings(plain.stats)]),
            "equal": run.rows == plain.rows and damage is None,
            "first_difference": first_difference(runs, plain.rows, run.rows),
            **({"damage": damage} if damage else {}),
        }


def traffic(runs: DecodeSession, plain: Run) -> dict[str, Any]:
    """How near plain decoding comes to reading the weights and the cache as fast as this machine reads memory."""
    passes = max(map(len, plain.rows))
    if not passes:
        return {}
    target = runs.target
    lengths = [len(p) + len(r) / 2 for p, r in zip(runs.prompts, plain.rows, strict=True)]
    moved = bytes_per_step(target, runs.cache, sum(lengths) / len(lengths), len(lengths))
    measured_gb_s = bandwidth(target.device, moved)
    share = moved / (plain.stats.decode_s / passes) / (measured_gb_s * 1e9)
    return {"bytes_per_step": moved, "bandwidth_gb_s": measured_gb_s, "bandwidth_share": share}
