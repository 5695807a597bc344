"""Task `speed`: all methods take turns at decoding the same prompts, which are prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longdraft.bench.baselines import Baseline, Stock
from longdraft.bench.inputs import Text
from longdraft.bench.selection import Entry, setting
from longdraft.core import Sampler, match
from longdraft.drafters import Drafter, Oracle
from longdraft.engine import generate as engine
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Stats
from longdraft.engine.measure import Output, traffic
from longdraft.engine.rates import speedups
from longdraft.engine.record_file import RecordFile
from longdraft.engine.records import provenance
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM

WARM = 16  # tokens that each method decodes before anything is timed


@dataclass
class Speed:
    """The parameters of one run. entries always include plain decoding, which speedups and equality refer to."""

    entries: list[Entry]
    texts: list[Text]
    contexts: list[int]
    new_tokens: int = 256
    batch: int = 1
    repeat: int = 3
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    accept: float | None = None

    def __post_init__(self) -> None:
        if not any(e.name == "plain" for e in self.entries):
            self.entries = [MethodSpec("plain", "plain"), *self.entries]

    def check(self, target: LM) -> None:
        """Raises InputError for whatever would fail later."""
        for e in self.entries:
            if isinstance(e, MethodSpec):
                e.check(target, self.accept if e.speculative else None)
        for text in self.texts:
            for context in self.contexts:
                prompts = text.prompts(context, self.batch)
                engine.check(target, prompts, self.new_tokens, Drafter(), match)
        if any(isinstance(e, Baseline) for e in self.entries) and (self.new_tokens < 2 or self.sampler.temperature > 0):
            raise InputError("hf-dynamic and hf-static need --max-new-tokens 2 or more and --temperature 0")

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * (len(self.entries) * self.repeat + 1)


class Cell:
    """One text at one context: the prompts, their cache, and plain decoding's output before any drafter has run.

    damage: what a method changed that it must not change, by the method's label; the prompts are then prefilled again.
    """

    def __init__(self, job: Speed, target: LM, stock: Stock | None, text: Text, context: int):
        self.job, self.target, self.stock = job, target, stock
        self.damage: dict[str, str] = {}
        self.ours = self._prefill(text.prompts(context, job.batch))
        self.plain = self.ours.rows()
        kinds = [e.name for e in job.entries if isinstance(e, Baseline)]
        self.stocked = {k: stock.prefill(k, self.ours.prompts, job.new_tokens) for k in kinds} if stock else {}
        self.depths = {e.label: e.chain_depth(target) for e in job.entries if isinstance(e, MethodSpec)}

    def _prefill(self, prompts: list[list[int]]) -> DecodeSession:
        runs = DecodeSession(self.target, prompts, self.job.new_tokens, self.job.sampler, self.job.seed, eos=())
        runs.seal()
        return runs

    def run(self, entry: Entry, limit: int) -> Output:
        """The new tokens of each row, and what they cost."""
        if isinstance(entry, Baseline):
            assert self.stock is not None
            cache, prefill_s = self.stocked[entry.name]
            rows, seconds = self.stock.decode(self.ours.prompts, cache, limit)
            emitted = (limit - 1) * len(rows)  # its prefill gives the first token
            return Output(rows, Stats(prefill_s=prefill_s, decode_s=seconds, verify_s=seconds, emitted=emitted))
        stats, accept = Stats(prefill_s=self.ours.prefill_s), self.job.accept
        if accept is not None and entry.speculative:
            drafter = Oracle(entry.build(self.target), self.plain, accept)
        else:
            drafter = entry.paced(self.target)
        rows = self.ours.rows(drafter, stats, limit)
        if damage := self.ours.altered():
            self.damage[entry.label] = damage
            self.ours = self._prefill(self.ours.prompts)
        return Output(rows, stats)


def speed(job: Speed, target: LM, tokenizer: Any, log: RecordFile, tick: Callable[[str], None]) -> Iterator[dict]:
    """Yields each record as it is written; in the end, speedups are computed from the medians of all repeats."""
    shared = provenance(target, job.seed)
    stock = Stock(target) if any(isinstance(e, Baseline) for e in job.entries) else None
    for text in job.texts:
        for context in job.contexts:
            tick(f"{text.name} {context}: prefill")
            cell, done = Cell(job, target, stock, text, context), []
            for entry in job.entries:
                cell.run(entry, max(2 * isinstance(entry, Baseline), min(WARM, job.new_tokens)))
            for r in range(job.repeat):
                turn = r % len(job.entries)
                for entry in job.entries[turn:] + job.entries[:turn]:
                    tick(f"{text.name} {context}: {entry.label} {r + 1}/{job.repeat}")
                    found = _describe(job, cell, entry, text, cell.run(entry, job.new_tokens), tokenizer)
                    done.append(shared | found | {"context": context, "repeat": r})
                    for d in done:
                        d |= speedups(d, [p for p in done if p["method"] == "plain"])
                    log.append(done[-1])
                    yield done[-1]
            log.amend(done)


def _describe(job: Speed, cell: Cell, entry: Entry, text: Text, output: Output, tokenizer: Any) -> dict[str, Any]:
    """The fields of a record for one decoding."""
    difference, damage = first_difference(cell.ours, cell.plain, output.rows), cell.damage.get(entry.label)
    found = setting("speed", entry, text, len(output.rows), job.sampler)
    found["pace"] = entry.pace and job.accept is None
    text_of = tokenizer.decode if tokenizer else lambda row: ""
    found |= output.describe(cell.ours.prompts, text_of, cell.depths.get(entry.label, 0))
    found |= {"equal": difference is None and damage is None, "first_difference": difference}
    if damage:
        found["damage"] = damage
    if job.accept is not None:
        found["oracle"] = job.accept
    if entry.name == "plain":
        found |= traffic(cell.ours, output)
    return found
