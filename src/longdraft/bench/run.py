"""Task `speed`: every method decodes the same prompts in one process, turn by turn, prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longdraft.bench.baselines import Stock
from longdraft.bench.inputs import Text
from longdraft.core.sampling import Sampler
from longdraft.core.verify import match
from longdraft.drafters import Drafter, Oracle
from longdraft.engine import generate as engine
from longdraft.engine import records as record
from longdraft.engine.decode_session import DecodeSession, first_difference
from longdraft.engine.generate import Stats
from longdraft.engine.rates import speedups, timings
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM

WARM = 16  # tokens that each method decodes before any is timed


@dataclass
class Speed:
    """What one run of the task is asked to do."""

    entries: list[MethodSpec]
    texts: list[Text]
    contexts: list[int]
    new_tokens: int = 256
    batch: int = 1
    repeat: int = 3
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    accept: float | None = None

    def __post_init__(self) -> None:
        if not any(e.name == "plain" for e in self.entries):  # speedup and equality are said of it
            self.entries = [MethodSpec("plain", "plain"), *self.entries]

    def check(self, target: LM) -> None:
        """Raises InputError for what could only fail after an hour."""
        for text in self.texts:
            for context in self.contexts:
                prompts = text.prompts(context, self.batch)
                engine.check(target, prompts, self.new_tokens, Drafter(), match)
        if any(e.stock for e in self.entries) and (self.new_tokens < 2 or self.sampler.temperature > 0):
            raise InputError("hf-dynamic and hf-static need --max-new-tokens 2 or more and --temperature 0")

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * (len(self.entries) * self.repeat + 1)


class Cell:
    """One text at one context: the prompts, their cache, and what plain decoding says before any drafter has run.

    damage: what a method, by its label, changed that is not its own. The prompts are then read anew.
    """

    def __init__(self, job: Speed, target: LM, stock: Stock | None, text: Text, context: int):
        self.job, self.target, self.stock = job, target, stock
        self.damage: dict[str, str] = {}
        self.ours = self._prefill(text.prompts(context, job.batch))
        self.plain = self.ours.rows()
        kinds = [e.name for e in job.entries if e.stock]
        self.stocked = {k: stock.prefill(k, self.ours.prompts, job.new_tokens) for k in kinds} if stock else {}

    def _prefill(self, prompts: list[list[int]]) -> DecodeSession:
        runs = DecodeSession(self.target, prompts, self.job.new_tokens, self.job.sampler, self.job.seed, eos=())
        runs.seal()
        return runs

    def run(self, entry: MethodSpec, limit: int) -> tuple[list[list[int]], dict[str, Any]]:
        """The new tokens of each row, and the figures of `generate --json`."""
        if entry.stock:
            assert self.stock is not None
            cache, prefill_s = self.stocked[entry.name]
            rows, seconds = self.stock.decode(self.ours.prompts, cache, limit)
            stats = Stats(prefill_s=prefill_s, decode_s=seconds, verify_s=seconds, emitted=(limit - 1) * len(rows))
            return rows, outcome(stats, 0)  # its prefill gives the first token
        stats, accept = Stats(prefill_s=self.ours.prefill_s), self.job.accept
        if accept is not None and entry.speculative:
            drafter = Oracle(entry.build(self.target), self.plain, accept)
        else:
            drafter = entry.paced(self.target)
        rows = self.ours.rows(drafter, stats, limit)
        if damage := self.ours.altered():
            self.damage[entry.label] = damage
            self.ours = self._prefill(self.ours.prompts)
        return rows, outcome(stats, entry.gamma or 0)


def distinct(rows: list[list[int]], n: int = 3) -> float:
    """Share of the n-grams of each row that are not repeats: low where a text loops."""
    grams = [[tuple(row[i : i + n]) for i in range(len(row) - n + 1)] for row in rows]
    total = sum(map(len, grams))
    return sum(len(set(g)) for g in grams) / total if total else 1.0


def diversity(rows: list[list[int]]) -> dict[str, float]:
    """Distinct-1 to 4, TokenSwift's measure of how little a long text repeats itself."""
    return {f"distinct_{n}": distinct(rows, n) for n in range(1, 5)}


def outcome(stats: Stats, gamma: int) -> dict[str, Any]:
    """Figures of one decoding, named as in `generate --json`; positions never accepted are there as zeros."""
    by_position = stats.acceptance_per_position
    return {
        **timings(stats),
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_per_position": by_position + [0.0] * (gamma - len(by_position)),
        "verify_steps": stats.steps,
        "draft_s": stats.draft_s,
        "verify_s": stats.verify_s,
    }


def speed(job: Speed, target: LM, tokenizer: Any, log: record.Log, tick: Callable[[str], None]) -> Iterator[dict]:
    """Yields each record as it is written. Speedups are over plain's median so far, and in the end over all of it."""
    shared = record.provenance(target, job.seed)
    stock = Stock(target) if any(e.stock for e in job.entries) else None
    for text in job.texts:
        for context in job.contexts:
            tick(f"{text.name} {context}: prefill")
            cell, done = Cell(job, target, stock, text, context), []
            for entry in job.entries:
                cell.run(entry, max(2, min(WARM, job.new_tokens)) if entry.stock else min(WARM, job.new_tokens))
            for r in range(job.repeat):
                turn = r % len(job.entries)
                for entry in job.entries[turn:] + job.entries[:turn]:
                    tick(f"{text.name} {context}: {entry.label} {r + 1}/{job.repeat}")
                    rows, figures = cell.run(entry, job.new_tokens)
                    found = _describe(job, cell, entry, text, rows, figures, tokenizer, shared)
                    done.append(shared | found | {"context": context, "repeat": r})
                    _set_speedup(done)
                    log.append(done[-1])
                    yield done[-1]
            log.amend(done)


def _set_speedup(records: list[dict]) -> None:
    plains = [r for r in records if r["method"] == "plain"]
    for r in records:
        r |= speedups(r, plains)


def _describe(
    job: Speed, cell: Cell, entry: MethodSpec, text: Text, rows: list, figures: dict, tokenizer: Any, shared: dict
) -> dict[str, Any]:
    """The parts of a record that are this decoding's own. What rows have one each of is a list if there are several."""
    each = {
        "text": [tokenizer.decode(row) if tokenizer else "" for row in rows],
        "token_ids": rows,
        "prompt_tokens": [len(p) for p in cell.ours.prompts],
        "new_tokens": [len(row) for row in rows],
    }
    difference, damage = first_difference(cell.ours, cell.plain, rows), cell.damage.get(entry.label)
    found = {
        "task": "speed",
        "method": entry.name,
        "label": entry.label,
        "options": entry.options,
        "pace": entry.pace and job.accept is None,
        **entry.origin,
        **{k: v[0] if len(rows) == 1 else v for k, v in each.items()},
        "text_name": text.name,
        "text_sha256": text.sha256,
        "batch": len(rows),
        "temperature": job.sampler.temperature,
        **figures,
        **diversity(rows),
        "equal": difference is None and damage is None,
        "first_difference": difference,
        **({"damage": damage} if damage else {}),
    }
    if "score" in entry.options:
        found["score"] = entry.options["score"]
    if job.accept is not None:
        found["oracle"] = job.accept
    if entry.name == "plain":
        middle = len(cell.ours.prompts[0]) + len(rows[0]) / 2
        size = record.bytes_per_step(cell.target, cell.ours.cache, middle, len(rows))
        rate = size * figures["tokens_per_s"] / len(rows) / 1e9
        read = record.bandwidth(cell.target.device, size)
        found |= {"bytes_per_step": size, "bandwidth_gb_s": read, "bandwidth_share": rate / read}
    return found
