"""Is a method lossless on this model and these texts? Every difference from plain decoding, found and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from longdraft import engine, verify
from longdraft.bench.run import distinct
from longdraft.drafters import Drafter
from longdraft.engine import Stats, decode
from longdraft.errors import InputError
from longdraft.model import LM
from longdraft.runs import Prefilled
from longdraft.sampling import Sampler
from longdraft.sequences import Sequences
from longdraft.tree import Tree
from longdraft.verify import Verdict, Verifier, match

# Scores this close are a tie. In bfloat16 neighbouring numbers between 16 and 32, where logits lie, are 0.125 apart.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
ASTRAY = 1e-3  # of a layer's largest key or value in float32: a thousand times what rounding does
WINDOW = 512  # new tokens per prompt at most, where the text has room for more prompts: long free-running text loops
KEPT = 16  # best tokens of plain decoding whose scores are remembered


@dataclass(frozen=True)
class Prompt:
    """Tokens of a text, and how many new ones are decoded after them."""

    name: str
    tokens: list[int]
    new: int


@dataclass(frozen=True)
class Way:
    """Greedy, or sampled with one seed."""

    sampler: Sampler
    seed: int

    def __str__(self) -> str:
        T = self.sampler.temperature
        return f"T={T:g} seed {self.seed}" if T else "greedy"


def ways(temperature: float | None, seeds: int, seed: int) -> list[Way]:
    """One temperature; without one, greedy and 1. Sampled: with `seeds` seeds from `seed` on."""
    hot = 1.0 if temperature is None else temperature
    found = [Way(Sampler(), seed)] if not temperature else []
    return found + [Way(Sampler(hot), seed + i) for i in range(seeds) if hot > 0]


def windows(name: str, text: list[int], size: int, new: int, positions: int) -> list[Prompt]:
    """Prompts of at most `size` tokens, spread over a text, from which `new` tokens are decoded in all."""
    count = -(-new // WINDOW)
    spare = len(text) - min(size, positions - WINDOW)
    if spare < count - 1 or count == 1 or positions <= WINDOW:
        return [Prompt(name, text[: max(min(size, positions - new), 1)], new)]
    starts = [spare * i // (count - 1) for i in range(count)]
    parts = [new * (i + 1) // count - new * i // count for i in range(count)]
    long = len(text) - spare
    return [Prompt(f"{name}:{at}", text[at : at + long], n) for at, n in zip(starts, parts, strict=True)]


@dataclass
class Audit:
    """What is decoded both ways. build: a new drafter for every run. tolerance: of a score, in logits."""

    target: LM
    build: Callable[[], Drafter]
    prompts: list[Prompt]
    ways: list[Way]
    tolerance: float
    verify: Verifier | None = None

    def check(self) -> None:
        """Raises InputError for what could only fail later."""
        if not self.tolerance >= 0:
            raise InputError(f"tolerance is {self.tolerance}: give 0 or more")
        for p in self.prompts:
            engine.check(self.target, [p.tokens], p.new, Drafter(), match)
        self.build()

    @property
    def steps(self) -> int:
        return 2 * len(self.ways) * sum(p.new for p in self.prompts)

    def run(self, tick: Callable[[int, str], None], known: Callable[[int, str], bool]) -> Iterator[dict[str, Any]]:
        """One record per prompt and way; those that are known already are passed over.

        A keyboard interrupt yields the record as far as it came, and then goes on its way.
        """
        for i, prompt in enumerate(self.prompts):
            passage: Passage | None = None
            for way in self.ways:
                if known(i, str(way)):
                    tick(2 * prompt.new, "")
                    continue
                tick(0, f"{prompt.name} {way}")
                if passage is None or passage.damaged:
                    passage = Passage(self, prompt)
                one = Run(prompt, i, way)
                try:
                    passage.compare(one, lambda n: tick(n, ""))
                except KeyboardInterrupt:
                    one.interrupted = True
                yield one.record()
                if one.interrupted:
                    raise KeyboardInterrupt


@dataclass
class Run:
    """One prompt decoded one way: `tokens` of `plain` were compared so far, and `found` has every difference."""

    prompt: Prompt
    index: int
    way: Way
    tokens: int = 0
    plain: list[int] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    interrupted: bool = False

    def record(self) -> dict[str, Any]:
        ties = sum(d["kind"] == "tie" for d in self.found)
        return {
            "index": self.index,
            "prompt": self.prompt.name,
            "prompt_tokens": len(self.prompt.tokens),
            "way": str(self.way),
            "sampler": asdict(self.way.sampler),
            "seed": self.way.seed,
            "tokens": self.tokens,
            "differences": len(self.found),
            "ties": ties,
            "failures": len(self.found) - ties,
            "found": self.found,
            "verify_steps": self.stats.steps,
            "accepted": sum(self.stats.accepted),
            "mean_acceptance_length": self.stats.mean_acceptance_length,
            "acceptance_per_position": self.stats.acceptance_per_position,
            **{f"distinct_{n}": distinct([self.plain], n) for n in range(1, 5)},
            **({"interrupted": True} if self.interrupted else {}),
        }


class Passage:
    """A prompt whose keys and values no drafter may change: `damaged` when one did, and then all that follows is void.

    Plain decoding's own keys are kept, so that after a tie the method goes on exactly from where plain decoding was.
    """

    def __init__(self, audit: Audit, prompt: Prompt):
        self.audit, self.damaged = audit, False
        self.runs = Prefilled(audit.target, [prompt.tokens], prompt.new, eos=())
        self.begin = int(self.runs.cache.length[0])
        self.sums = self._sums()

    def _sums(self) -> list[Tensor]:
        """Per layer and committed slot of the prompt, the sum of its bits as numbers."""
        kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        found = []
        for layer in self.runs.cache.layers:
            for x in self.runs.cache.read(layer, 0):
                bits = x[:, : self.begin].contiguous().view(kinds[x.element_size()])
                found.append(bits.sum((0, 2)))
        return found

    def _reference(self, run: Run, tick: Callable[[int], None]) -> list[tuple[list[int], list[float]]]:
        """Decode plainly; the best tokens and scores of every step."""
        best = []

        def spy(tree: Tree, logits: Tensor, seqs: Sequences) -> Verdict:
            top = seqs.sampler.scores(logits, tree, seqs)[0, 0].topk(min(KEPT, logits.shape[-1]))
            best.append((top.indices.tolist(), top.values.tolist()))
            return match(tree, logits, seqs)

        self.runs.sampler, self.runs.seed = run.way.sampler, run.way.seed
        for step in self.runs.decode(verify=spy):
            run.plain += step.tokens[0]
            tick(len(step.tokens[0]))
        cache, end = self.runs.cache, self.begin + len(run.plain)
        self.keys = {n: [x[:, self.begin : end].clone() for x in cache.read(n, 0)] for n in cache.layers}
        return best

    @torch.inference_mode()
    def _from(self, run: Run, at: int) -> Sequences:
        """Plain decoding's state after its first `at` tokens, to the bit."""
        cache = self.runs.cache
        for layer, saved in self.keys.items():
            for x, old in zip(cache.read(layer, 0), saved, strict=True):
                x[:, self.begin : self.begin + old.shape[1]] = old
        cache.length.fill_(self.begin + at)
        text, left = run.prompt.tokens + run.plain[:at], len(run.plain) - at
        seqs = Sequences.on(self.audit.target, [text], left, cache, run.way.sampler, run.way.seed, eos=())
        seqs.prompt.fill_(len(run.prompt.tokens))  # the model's rules may count from its end
        seqs.limit.fill_(len(run.plain))
        return seqs

    def _astray(self) -> bool:
        """Whether the new tokens' keys and values are other than plain decoding's, beyond rounding.

        Not asked in bfloat16, where rounding may choose another expert and with it other keys.
        """
        if self.audit.target.dtype != torch.float32:
            return False
        pairs = [
            (x[:, self.begin : self.begin + old.shape[1]], old)
            for layer, saved in self.keys.items()
            for x, old in zip(self.runs.cache.read(layer, 0), saved, strict=True)
        ]
        return not all(bool((new - old).abs().max() <= ASTRAY * old.abs().max()) for new, old in pairs)

    def compare(self, run: Run, tick: Callable[[int], None]) -> None:
        """Decode both ways. After a tie the method goes on from plain decoding's text; a failure ends the run."""
        best = self._reference(run, tick)
        while run.tokens < len(run.plain) and not any(d["kind"] == "failure" for d in run.found):
            at = self._walk(run, tick)
            if at is None:
                break
            run.found.append(self._judge(run, *at, *best[at[0]]))
            run.tokens += 1
        why = None
        if any(not torch.equal(a, b) for a, b in zip(self.sums, self._sums(), strict=True)):
            self.damaged, why = True, "the prompt's keys and values were changed"
        elif not any(d["kind"] == "failure" for d in run.found) and self._astray():
            why = "the new tokens' keys and values are not plain decoding's"
        if why:
            run.found.append({"kind": "failure", "position": None, "why": why})

    def _walk(self, run: Run, tick: Callable[[int], None]) -> tuple[int, int | None] | None:
        """Decode by the method from run.tokens on, up to a difference: (position, the token it said there)."""
        audit, seqs = self.audit, self._from(run, run.tokens)
        for step in decode(audit.target, audit.build(), seqs, audit.verify or verify.match, run.stats):
            for token in step.tokens[0]:
                if token != run.plain[run.tokens]:
                    return run.tokens, token
                run.tokens += 1
            tick(len(step.tokens[0]))
        return (run.tokens, None) if run.tokens < len(run.plain) else None

    def _judge(
        self, run: Run, position: int, token: int | None, tokens: list[int], scores: list[float]
    ) -> dict[str, Any]:
        """A tie: plain decoding preferred its own token over this one by no more than the tolerance."""
        T = run.way.sampler.temperature
        within = self.audit.tolerance / (min(T, 1.0) or 1.0)  # a low temperature magnifies rounding
        gap = scores[0] - scores[tokens.index(token)] if token in tokens else None
        tie = gap is not None and gap <= within
        apart = scores[0] - scores[1]
        return {
            "kind": "tie" if tie else "failure",
            "position": position,
            "plain": run.plain[position],
            "method": token,
            "gap": gap,
            "top2_gap": apart if apart < float("inf") else None,
        }
