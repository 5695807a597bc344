"""What a step costs by what it does: plain, verifying rows, drafting under a view, choosing and copying keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from longdraft.bench.inputs import Text
from longdraft.core.cache import KVCache
from longdraft.core.capture import Captures
from longdraft.core.chain_draws import ChainDraws
from longdraft.core.tree import Tree
from longdraft.engine import records as record
from longdraft.engine.decode_session import DecodeSession
from longdraft.errors import InputError
from longdraft.methods import vegas
from longdraft.models.lm import LM
from longdraft.views import Policy

ROWS = (2, 4, 8, 16, 32, 69)  # 69: LongSpec's tree
TREES = (12, 69)
GUIDED = 8  # rows of the verification that guides a draft of 7


@dataclass
class Steps:
    """Turns of every operation, interleaved; each turn is the mean of `inner` calls in a row."""

    texts: list[Text]
    contexts: list[int]
    repeat: int
    seed: int = 0
    inner: int = 5

    def check(self, target: LM) -> None:
        """Raises InputError where a context does not fit."""
        most = max(self.contexts) + max(ROWS)
        if most > target.positions:
            raise InputError(f"context {max(self.contexts)} needs {most} positions; the model has {target.positions}")
        for text in self.texts:
            text.prompts(max(self.contexts), 1)

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * self.repeat


def operations(target: LM, runs: DecodeSession) -> dict[str, tuple[Callable[[], Any], int]]:
    """{name: (a call, how many of the operation it does)}: all leave the committed part of the cache as it is."""
    cache, policy = runs.cache, vegas(target).policy  # type: ignore[attr-defined]
    text = torch.tensor([runs.prompts[0][-max(ROWS) :]], device=target.device)
    chains, trees = {n: Tree.chain(text[:, :n]) for n in (1, *ROWS)}, {n: _branching(text[:, :n]) for n in TREES}

    def tapped(rows: int, begin: int = 0) -> Captures:
        captured = Captures(policy.captures())
        target(Tree.chain(text[:, begin : begin + rows]), cache, captured=captured)
        return captured

    turns = cycle(
        [tapped(GUIDED), captured := tapped(GUIDED, GUIDED)]
    )  # a round's keys are not those of the one before
    policy.update(cache, captured)
    found: dict[str, Any] = {"plain": lambda: target(chains[1], cache)}
    found |= {f"verify {n} rows": lambda n=n: target(chains[n], cache) for n in ROWS}
    found |= {f"verify a tree of {n}": lambda n=n: target(trees[n], cache) for n in TREES}
    found |= {f"verify {n} rows, scores kept": lambda n=n: tapped(n) for n in (1, GUIDED)}

    def choose() -> None:
        policy.update(cache, next(turns))
        chosen = policy.view(cache)
        for layer in chosen.layers or {}:
            chosen.compact(layer, 0, *cache.read(layer, 0))

    found["choose and copy 7%"] = choose
    calls = {name: (call, 1) for name, call in found.items()}
    calls["draft at 7%"] = _drafting(target, cache, policy, text[:, 0])
    return calls


def _branching(tokens: Tensor) -> Tree:
    """tokens [1,N]: four nodes a level, each below one of the level before, so that no path lies side by side."""
    tree = Tree.root(tokens[:, 0])
    for level in tokens[:, 1:].split(4, 1):
        first = max(0, tree.size - 4)
        parent = first + torch.arange(level.shape[1], device=tokens.device).flip(0) % (tree.size - first)
        tree = tree.grow(parent[None], level)
    return tree


def _drafting(target: LM, cache: KVCache, policy: Policy, first: Tensor) -> tuple[Callable[[], Any], int]:
    """A chain as vegas drafts it, where the backend drafts it in one call; else one of its steps."""
    if target.backend.chain_drafter(cache, policy.view(cache)) is None:
        return lambda: target(Tree.root(first), cache, view=policy.view(cache)), 1
    draws = ChainDraws(GUIDED - 1, 0.0, torch.zeros_like(first), cache.length + 1)

    def draft() -> None:
        chain = target.backend.chain_drafter(cache, policy.view(cache))
        assert chain is not None
        chain(first, 0, draws)

    return draft, draws.count


def steps(job: Steps, target: LM, log: record.Log, tick: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yields a record for every operation at every text and context, with the milliseconds of each turn."""
    shared = record.provenance(target, job.seed)
    for text in job.texts:
        for context in job.contexts:
            runs = DecodeSession(target, text.prompts(context, 1), max(ROWS), seed=job.seed, eos=())
            with torch.inference_mode():
                calls = operations(target, runs)
                times: dict[str, list[float]] = {name: [] for name in calls}
                for r in range(job.repeat):
                    tick(f"{text.name} {context}: {r + 1}/{job.repeat}")
                    for name, call in calls.items():
                        times[name].append(_mean_ms(*call, job.inner))
            size = record.bytes_per_step(target, runs.cache, context, 1)
            read = record.bandwidth(target.device, size)
            for name, ms in times.items():
                found = {"task": "steps", "method": name, "label": name, "context": context, "ms": ms}
                found |= {"text_name": text.name, "text_sha256": text.sha256, "temperature": 0.0, "batch": 1}
                found |= {"bytes_per_step": size, "bandwidth_gb_s": read}
                log.append(shared | found)
                yield shared | found


def _mean_ms(call: Callable[[], Any], parts: int, inner: int) -> float:
    call()  # what the operation before left in the processor's caches is not this one's
    begin = perf_counter()
    for _ in range(inner):
        call()
    return (perf_counter() - begin) / inner / parts * 1e3
