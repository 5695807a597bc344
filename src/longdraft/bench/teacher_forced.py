"""Task `anchored`: how many drafts the target accepts at many positions (anchors) of a real text.

The output of a weak model repeats itself, which makes every drafter look good, so here the text is
given. At each anchor, a step without drafts (which provides attention scores to guided views) is
followed by one with drafts, and both are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import torch

from longdraft.bench.averages import mean_and_errors
from longdraft.bench.inputs import Text
from longdraft.bench.selection import Entry, setting
from longdraft.core import KVCache, Sampler, match
from longdraft.drafters import Drafter
from longdraft.engine.generate import Stats, step
from longdraft.errors import InputError
from longdraft.methods.spec import MethodSpec
from longdraft.models.lm import LM
from longdraft.prompts.prompt_file import Keeper, PromptFiles, read_prompt
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import provenance


@dataclass
class TeacherForced:
    """The parameters of one run. warmup_rounds: speculative steps before the measured one."""

    target: LM
    entries: list[Entry]
    texts: list[Text]
    contexts: list[int]
    anchors: int = 200
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    warmup_rounds: int = 0
    every: int = 16
    kept: PromptFiles | None = None

    @property
    def per_window(self) -> int:
        """Anchors per window: at most 20, in 10 windows if there are enough, since neighboring
        anchors are alike.
        """
        return min(20, -(-self.anchors // 10))

    @cached_property
    def depths(self) -> dict[str, int]:
        """The depth of each method's drafts, by label."""
        return {
            e.label: e.build(self.target).max_depth
            for e in self.entries
            if isinstance(e, MethodSpec)
        }

    @property
    def limit(self) -> int:
        """New tokens that the steps at an anchor can emit."""
        return 1 + (self.warmup_rounds + 1) * (max(self.depths.values()) + 1)

    def windows(self, text: Text, context: int) -> list[tuple[int, int]]:
        """(start, anchors) of windows spread over the text that share no anchor. Raises
        InputError.
        """
        count = -(-self.anchors // self.per_window)
        span = self.per_window * self.every
        spare = len(text.tokens) - context - span
        if spare < (count - 1) * span:
            raise InputError(
                f"the text {text.name} has {len(text.tokens)} tokens; {self.anchors} "
                f"anchors after {context} tokens of"
                f" context need {context + count * span}: give a longer text, fewer "
                "--anchors or a shorter --context"
            )
        starts = [spare * w // max(count - 1, 1) for w in range(count)]
        left = [min(self.per_window, self.anchors - w * self.per_window) for w in range(count)]
        return list(zip(starts, left, strict=True))

    def check(self) -> None:
        """Raises InputError."""
        idle = next((e.label for e in self.entries if not e.speculative), None)
        if idle:
            raise InputError(f"{idle} drafts nothing: leave it out")
        for text, context in product(self.texts, self.contexts):
            self.windows(text, context)
        most = max(self.contexts) + self.per_window * self.every + self.limit
        if most > self.target.positions:
            raise InputError(
                f"context {max(self.contexts)} needs {most} positions and the model has "
                f"{self.target.positions}:"
                " give a shorter --context"
            )

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * self.anchors

    def run(self, log: RecordFile, tick: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yields one record per method, text and context; after an interrupt, records of the
        anchors until then.
        """
        shared = provenance(self.target, self.seed)
        for text, context in product(self.texts, self.contexts):
            by_label: dict[str, list[list[int]]] = {e.label: [] for e in self.entries}
            stopped: KeyboardInterrupt | None = None
            try:
                self._measure(text, context, by_label, tick)
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
            for e in self.entries:
                r = (
                    shared
                    | setting("anchored", e, text, 1, self.sampler)
                    | {"context": context, "repeat": 0}
                )
                r |= self._figures(by_label[e.label], self.depths[e.label])
                r |= {"interrupted": True} if stopped is not None else {}
                if r["anchors"]:
                    log.append(r)
                    yield r
            if stopped is not None:
                raise stopped

    def _measure(
        self, text: Text, context: int, by_label: dict[str, list], tick: Callable[[str], None]
    ) -> None:
        """Fill found {label: [window [accepted drafts of each anchor]]}, with the same anchors for
        all methods.
        """
        for w, (start, anchors) in enumerate(self.windows(text, context)):
            for windows in by_label.values():
                windows.append([])
            places = walk(self.target, text.tokens[start:], context, anchors, self.every, self.kept)
            for i, (cache, tokens) in enumerate(places):
                tick(f"{text.name} {context}: window {w + 1}, anchor {i + 1}")
                drafters = {
                    e.label: e.build(self.target) for e in self.entries if isinstance(e, MethodSpec)
                }
                counts = {
                    label: accepted_at(self, d, cache, tokens, self.seed + w)
                    for label, d in drafters.items()
                }
                for label, n in counts.items():
                    by_label[label][-1].append(n)

    def _figures(self, windows: list[list[int]], depth: int) -> dict[str, Any]:
        windows = [w for w in windows if w]
        counts = [n for w in windows for n in w]
        mean, stderr, clustered = mean_and_errors(windows)
        return {
            "anchors": len(counts),
            "windows": len(windows),
            "every": self.every,
            "warmup_rounds": self.warmup_rounds,
            "mean_acceptance_length": 1 + mean,
            "stderr": stderr,
            "stderr_clustered": clustered,
            "acceptance_per_position": [
                sum(n > i for n in counts) / max(len(counts), 1) for i in range(depth)
            ],
            "verify_steps": len(counts),
            "accepted": windows,
        }


@torch.inference_mode()
def accepted_at(
    job: TeacherForced, drafter: Drafter, cache: KVCache, tokens: list[int], seed: int
) -> int:
    """Drafts accepted in one step after `tokens`. The cache holds tokens[:-1], before and after."""
    stats = Stats()
    with cache.rollback():
        seqs = job.target.sequences([tokens], job.limit, cache, job.sampler, seed, eos=())
        drafter.start(seqs)
        step(job.target, drafter, seqs, match, Stats(), draft=False)
        for _ in range(job.warmup_rounds):
            step(job.target, drafter, seqs, match, Stats())
        step(job.target, drafter, seqs, match, stats)
    return sum(stats.accepted)


def walk(
    target: LM,
    tokens: list[int],
    context: int,
    anchors: int,
    every: int,
    kept: Keeper | None = None,
) -> Iterator[tuple[KVCache, list[int]]]:
    """Yields, at each anchor of a text, the tokens up to it and a cache that holds all of them but
    the last.
    """
    cache = target.new_cache(1, context + anchors * every + 64)
    if kept is not None:
        with torch.inference_mode():
            _, read = read_prompt(target, tokens[: context - 1], cache, kept)
        kept.store(tokens[: context - 1], cache, read.whole_s)
    for length in range(context, context + anchors * every, every):
        with torch.inference_mode():
            target.prefill(tokens[int(cache.length) : length - 1], cache)
        yield cache, tokens[:length]
