"""Task `steps`: what decoding, verifying, drafting under a view, and selecting and copying keys
cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, product
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from longdraft.bench.inputs import Text
from longdraft.core import Captures, ChainDraws, KVCache, Sampler, Tree
from longdraft.engine.decode_session import DecodeSession
from longdraft.errors import InputError
from longdraft.methods.self_speculative import vegas
from longdraft.models.lm import LM
from longdraft.ops.bandwidth import bandwidth
from longdraft.prompts.prompt_file import PromptFiles
from longdraft.recording.record_file import RecordFile
from longdraft.recording.record_origin import bytes_per_step, provenance
from longdraft.views import Policy

ROWS = (2, 4, 8, 16, 32, 69)  # tokens per pass; 69: LongSpec's tree
TREES = (12, 69)
GUIDED = 8  # tokens in the verification of a draft of 7


@dataclass
class Steps:
    """The parameters of one run: operations take `repeat` turns, each the mean of `inner` calls in
    a row.
    """

    target: LM
    texts: list[Text]
    contexts: list[int]
    repeat: int
    seed: int
    inner: int = 5
    kept: PromptFiles | None = None

    def check(self) -> None:
        """Raises InputError if a context does not fit."""
        most = max(self.contexts) + max(ROWS)
        if most > self.target.positions:
            room = self.target.positions
            raise InputError(
                f"context {max(self.contexts)} needs {most} positions; the model has {room}"
            )
        for text in self.texts:
            text.prompts(max(self.contexts), 1)

    @property
    def steps(self) -> int:
        return len(self.texts) * len(self.contexts) * self.repeat

    def run(self, log: RecordFile, tick: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yields one record per operation, text and context, with the milliseconds of each turn."""
        target = self.target
        shared = provenance(self.target, self.seed)
        for text, context in product(self.texts, self.contexts):
            runs = DecodeSession(
                target, text.prompts(context, 1), max(ROWS), seed=self.seed, eos=(), kept=self.kept
            )
            with torch.inference_mode():
                calls = operations(target, runs)
                times: dict[str, list[float]] = {name: [] for name in calls}
                for r in range(self.repeat):
                    tick(f"{text.name} {context}: {r + 1}/{self.repeat}")
                    for name, call in calls.items():
                        times[name].append(_mean_ms(*call, self.inner))
            size = bytes_per_step(target, runs.cache, context, 1)
            read = bandwidth(target.device, size)
            for name, ms in times.items():
                record = {
                    "task": "steps",
                    "method": name,
                    "label": name,
                    "context": context,
                    "ms": ms,
                }
                record |= {
                    "text_name": text.name,
                    "text_sha256": text.sha256,
                    "temperature": 0.0,
                    "batch": 1,
                }
                record |= {"bytes_per_step": size, "bandwidth_gb_s": read}
                log.append(shared | record)
                yield shared | record


def operations(target: LM, runs: DecodeSession) -> dict[str, tuple[Callable[[], Any], int]]:
    """{name: (a call, how often it does the operation)}; no call changes the committed part of the
    cache.
    """
    cache = runs.cache
    policy = vegas(target).policy  # type: ignore[attr-defined]
    text = torch.tensor([runs.prompts[0][-max(ROWS) :]], device=target.device)
    chains = {n: Tree.chain(text[:, :n]) for n in (1, *ROWS)}
    trees = {n: _branching(text[:, :n]) for n in TREES}

    def scored(rows: int, begin: int = 0) -> Captures:
        captured = Captures(policy.captures())
        target(Tree.chain(text[:, begin : begin + rows]), cache, captured=captured)
        return captured

    # two sets of captures, so that successive calls select different keys
    turns = cycle([scored(GUIDED), captured := scored(GUIDED, GUIDED)])
    policy.update(cache, captured)
    timed: dict[str, Any] = {"plain": lambda: target(chains[1], cache)}
    timed |= {f"verify {n} rows": lambda n=n: target(chains[n], cache) for n in ROWS}
    timed |= {f"verify a tree of {n}": lambda n=n: target(trees[n], cache) for n in TREES}
    timed |= {f"verify {n} rows, scores kept": lambda n=n: scored(n) for n in (1, GUIDED)}

    def choose() -> None:
        policy.update(cache, next(turns))
        chosen = policy.view(cache)
        for layer in chosen.layers or {}:
            chosen.copy([(layer, 0, cache.stored_row(layer, 0))])

    calls = {name: (call, 1) for name, call in timed.items()}
    if policy.view(cache) is not None:  # else no layer has keys to choose from
        calls["choose and copy 7%"] = choose, 1
        calls["draft at 7%"] = _drafting(target, cache, policy, text[:, 0])
    return calls


def _branching(tokens: Tensor) -> Tree:
    """tokens [1,N] as a tree with four nodes per level, each below another node, so that no path is
    contiguous.
    """
    tree = Tree.root(tokens[:, 0])
    for level in tokens[:, 1:].split(4, 1):
        first = max(0, tree.size - 4)
        parent = first + torch.arange(level.shape[1], device=tokens.device).flip(0) % (
            tree.size - first
        )
        tree = tree.grow(parent[None], level)
    return tree


def _drafting(
    target: LM, cache: KVCache, policy: Policy, first: Tensor
) -> tuple[Callable[[], Any], int]:
    """A chain drafted as by vegas: in one call if the backend can, else one step of it."""
    if target.backend.chain_drafter(cache, policy.view(cache)) is None:
        return lambda: target(Tree.root(first), cache, view=policy.view(cache)), 1
    draws = ChainDraws(
        GUIDED - 1, [Sampler()] * len(first), torch.zeros_like(first), cache.length + 1
    )

    def draft() -> None:
        chain = target.backend.chain_drafter(cache, policy.view(cache))
        assert chain is not None
        chain(first, 0, draws)

    return draft, draws.count


def _mean_ms(call: Callable[[], Any], parts: int, inner: int) -> float:
    call()  # fills the processor's caches with this operation's data
    begin = perf_counter()
    for _ in range(inner):
        call()
    return (perf_counter() - begin) / inner / parts * 1e3
