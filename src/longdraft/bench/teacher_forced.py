"""Task `anchored`: how many drafts the target accepts at many places of a real text.

Free-running text of a weak model loops, and then any drafter looks good. So the text is given: at each anchor one step
without drafts (which guides what the verifier guides) and one with them, and what was decoded is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from longdraft.bench.averages import mean_and_errors
from longdraft.bench.inputs import Text
from longdraft.core.cache import KVCache
from longdraft.core.sampling import Sampler
from longdraft.core.sequences import Sequences
from longdraft.core.verify import match
from longdraft.drafters import Drafter
from longdraft.engine import records as record
from longdraft.engine.generate import Stats, step
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM


@dataclass
class TeacherForced:
    """What one run of the task is asked to do. settle: speculative steps before the one that is measured."""

    entries: list[MethodSpec]
    texts: list[Text]
    contexts: list[int]
    anchors: int = 200
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    warmup_rounds: int = 0
    every: int = 16

    @property
    def per_window(self) -> int:
        """At most 20 anchors of a window, and 10 windows where there are anchors for them: neighbours are alike."""
        return min(20, -(-self.anchors // 10))

    @property
    def longest(self) -> int:
        return max(e.longest for e in self.entries)

    @property
    def limit(self) -> int:
        """New tokens that an anchor may need."""
        return 1 + (self.warmup_rounds + 1) * (self.longest + 1)

    def windows(self, text: Text, context: int) -> list[tuple[int, int]]:
        """(start, anchors) of windows spread over the text so that no two share an anchor. Raises InputError."""
        count = -(-self.anchors // self.per_window)
        span = self.per_window * self.every
        spare = len(text.tokens) - context - span
        if spare < (count - 1) * span:
            raise InputError(
                f"the text {text.name} has {len(text.tokens)} tokens; {self.anchors} anchors after {context} tokens of"
                f" context need {context + count * span}: give a longer text, fewer --anchors or a shorter --context"
            )
        starts = [spare * w // max(count - 1, 1) for w in range(count)]
        left = [min(self.per_window, self.anchors - w * self.per_window) for w in range(count)]
        return list(zip(starts, left, strict=True))

    def check(self, target: LM) -> None:
        """Raises InputError."""
        idle = next((e.label for e in self.entries if not e.speculative), None)
        if idle:
            raise InputError(f"{idle} drafts nothing: leave it out of task anchored")
        for text in self.texts:
            for context in self.contexts:
                self.windows(text, context)
        most = max(self.contexts) + self.per_window * self.every + self.limit
        if most > target.positions:
            raise InputError(
                f"context {max(self.contexts)} needs {most} positions and the model has {target.positions}:"
                " give a shorter --context"
            )

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * self.anchors


@torch.inference_mode()
def accepted_at(target: LM, drafter: Drafter, cache: KVCache, tokens: list[int], job: TeacherForced, seed: int) -> int:
    """Drafts accepted in one step from here. The cache holds tokens[:-1] and is left holding them."""
    stats = Stats()
    with cache.rollback():
        seqs = Sequences.on(target, [tokens], job.limit, cache, job.sampler, seed, eos=())
        drafter.start(seqs)
        step(target, drafter, seqs, match, Stats(), draft=False)
        for _ in range(job.warmup_rounds):
            step(target, drafter, seqs, match, Stats())
        step(target, drafter, seqs, match, stats)
    return sum(stats.accepted)


def walk(target: LM, tokens: list[int], context: int, anchors: int, every: int) -> Iterator[tuple[KVCache, list[int]]]:
    """Feed a text and stop at each anchor: the cache holds all but the last of the tokens yielded with it."""
    cache = target.new_cache(1, context + anchors * every + 64)
    with torch.inference_mode():
        target.prefill(tokens[: context - 1], cache)
    for at in range(context, context + anchors * every, every):
        with torch.inference_mode():
            target.prefill(tokens[int(cache.length) : at - 1], cache)
        yield cache, tokens[:at]


def teacher_forced(job: TeacherForced, target: LM, log: record.Log, tick: Callable[[str], None]) -> Iterator[dict]:
    """One record per method, text and context. Interrupted, the anchors so far are kept and the record says so."""
    shared = record.provenance(target, job.seed)
    for text in job.texts:
        for context in job.contexts:
            found: dict[str, list[list[int]]] = {e.label: [] for e in job.entries}
            stopped: KeyboardInterrupt | None = None
            try:
                _measure(job, target, text, context, found, tick)
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
            for e in job.entries:
                r = shared | _describe(job, e, text, context, found)
                if stopped is not None:
                    r["interrupted"] = True
                if r["anchors"]:
                    log.append(r)
                    yield r
            if stopped is not None:
                raise stopped


def _measure(
    job: TeacherForced, target: LM, text: Text, context: int, found: dict, tick: Callable[[str], None]
) -> None:
    """Fill found {label: [window [accepted drafts of each anchor]]}: all methods at the very same anchors."""
    for w, (start, anchors) in enumerate(job.windows(text, context)):
        for windows in found.values():
            windows.append([])
        places = walk(target, text.tokens[start:], context, anchors, job.every)
        for i, (cache, tokens) in enumerate(places):
            tick(f"{text.name} {context}: window {w + 1}, anchor {i + 1}")
            counts = [accepted_at(target, e.build(target), cache, tokens, job, job.seed + w) for e in job.entries]
            for e, n in zip(job.entries, counts, strict=True):
                found[e.label][-1].append(n)


def _describe(job: TeacherForced, entry: MethodSpec, text: Text, context: int, found: dict) -> dict[str, Any]:
    windows = [w for w in found[entry.label] if w]
    counts = [n for w in windows for n in w]
    mean, stderr, clustered = mean_and_errors(windows)
    return {
        "task": "anchored",
        "method": entry.name,
        "label": entry.label,
        "options": entry.options,
        **entry.origin,
        **({"score": entry.options["score"]} if "score" in entry.options else {}),
        "text_name": text.name,
        "text_sha256": text.sha256,
        "context": context,
        "batch": 1,
        "repeat": 0,
        "temperature": job.sampler.temperature,
        "anchors": len(counts),
        "windows": len(windows),
        "every": job.every,
        "settle": job.warmup_rounds,
        "mean_acceptance_length": 1 + mean,
        "stderr": stderr,
        "stderr_clustered": clustered,
        "acceptance_per_position": [sum(n > i for n in counts) / max(len(counts), 1) for i in range(entry.longest)],
        "verify_steps": len(counts),
        "accepted": windows,
    }
