"""Task `speed`: all methods take turns at decoding the same prompts, which are prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from longdraft.bench.baselines import Baseline, Stock
from longdraft.bench.inputs import Text
from longdraft.bench.selection import Entry, setting
from longdraft.core import Sampler, match
from longdraft.drafters import Drafter, Oracle
from longdraft.engine import generate as engine
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Stats
from longdraft.engine.measure import Output, speedups, traffic
from longdraft.engine.record_file import RecordFile
from longdraft.engine.records import provenance
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM

WARM = 16  # tokens that each method decodes before anything is timed


@dataclass
class Speed:
    """The parameters of one run. entries always include plain decoding, which speedups and equality refer to."""

    target: LM
    tokenizer: Any  # None: records have no text
    entries: list[Entry]
    texts: list[Text]
    contexts: list[int]
    new_tokens: int
    batch: int
    repeat: int
    sampler: Sampler
    seed: int
    accept: float | None

    def __post_init__(self) -> None:
        if not any(e.name == "plain" for e in self.entries):
            self.entries = [MethodSpec("plain", "plain"), *self.entries]

    def check(self) -> None:
        """Raises InputError for whatever would fail later."""
        for e in self.entries:
            if isinstance(e, MethodSpec):
                e.check(self.target, self.accept if e.speculative else None)
        for text, context in product(self.texts, self.contexts):
            engine.check(self.target, text.prompts(context, self.batch), self.new_tokens, Drafter(), match)
        if any(isinstance(e, Baseline) for e in self.entries) and (self.new_tokens < 2 or self.sampler.temperature > 0):
            raise InputError("hf-dynamic and hf-static need --max-new-tokens 2 or more and --temperature 0")

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * (len(self.entries) * self.repeat + 1)

    def run(self, log: RecordFile, tick: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yields each record as it is written; in the end, speedups are computed from the medians of all repeats."""
        shared = provenance(self.target, self.seed)
        stock = Stock(self.target) if any(isinstance(e, Baseline) for e in self.entries) else None
        for text, context in product(self.texts, self.contexts):
            tick(f"{text.name} {context}: prefill")
            cell, done = Cell(self, stock, text, context), []
            for entry in self.entries:
                cell.run(entry, max(2 * isinstance(entry, Baseline), min(WARM, self.new_tokens)))
            for r in range(self.repeat):
                turn = r % len(self.entries)
                for entry in self.entries[turn:] + self.entries[:turn]:
                    tick(f"{text.name} {context}: {entry.label} {r + 1}/{self.repeat}")
                    found = cell.describe(entry, cell.run(entry, self.new_tokens))
                    done.append(shared | found | {"context": context, "repeat": r})
                    for d in done:
                        d |= speedups(d, [p for p in done if p["method"] == "plain"])
                    log.append(done[-1])
                    yield done[-1]
            log.amend(done)


class Cell:
    """One text at one context: the prompts, their cache, and plain decoding's output before any drafter has run.

    damage: what a method changed that it must not change, by the method's label; the prompts are then prefilled again.
    """

    def __init__(self, job: Speed, stock: Stock | None, text: Text, context: int):
        self.job, self.stock, self.text = job, stock, text
        self.damage: dict[str, str] = {}
        self.ours = self._prefill(text.prompts(context, job.batch))
        self.plain = self.ours.rows()
        kinds = [e.name for e in job.entries if isinstance(e, Baseline)]
        self.stocked = {k: stock.prefill(k, self.ours.prompts, job.new_tokens) for k in kinds} if stock else {}
        self.depths = {e.label: e.chain_depth(job.target) for e in job.entries if isinstance(e, MethodSpec)}

    def _prefill(self, prompts: list[list[int]]) -> DecodeSession:
        job = self.job
        runs = DecodeSession(job.target, prompts, job.new_tokens, job.sampler, job.seed, eos=())
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
            drafter = Oracle(entry.build(self.job.target), self.plain, accept)
        else:
            drafter = entry.paced(self.job.target)
        rows = self.ours.rows(drafter, stats, limit)
        if damage := self.ours.altered():
            self.damage[entry.label] = damage
            self.ours = self._prefill(self.ours.prompts)
        return Output(rows, stats)

    def describe(self, entry: Entry, output: Output) -> dict[str, Any]:
        """The fields of a record for one decoding."""
        job, damage = self.job, self.damage.get(entry.label)
        difference = first_difference(self.ours, self.plain, output.rows)
        found = setting("speed", entry, self.text, len(output.rows), job.sampler)
        found["pace"] = entry.pace and job.accept is None
        text_of = job.tokenizer.decode if job.tokenizer else lambda row: ""
        found |= output.describe(self.ours.prompts, text_of, self.depths.get(entry.label, 0))
        found |= {"equal": difference is None and damage is None, "first_difference": difference}
        if damage:
            found["damage"] = damage
        if job.accept is not None:
            found["oracle"] = job.accept
        if entry.name == "plain":
            found |= traffic(self.ours, output)
        return found
