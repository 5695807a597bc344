"""Seconds of the work around passes.

A decoding step's own, tree nodes, choosing a view, calls of a drafter's block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import linear

from longdraft.core import Captures, Sampler, Tree, is_indexable, match
from longdraft.models.lm import LM
from longdraft.ops import argmax
from longdraft.tuning.stopwatch import shortest, turn
from longdraft.tuning.workload import KEPT, PassShape, Workload
from longdraft.views.guided import Guided

CPU = torch.device("cpu")
TRIES = 7
LEVELS = 8  # of the tree whose nodes are compared with a root alone
LOOP = 1.2  # the loop around a step adds to it: sequences, statistics
WIDE = 8192  # a layer of this many rows is read from memory, not from a core's cache
BLOCK_CALLS = 40  # torch calls of a drafter's block: its norms, projections and attention


def best_of(call: Callable[[], Any], tries: int = TRIES) -> float:
    """Seconds of the shortest of some calls, after one that does not count."""
    call()
    return shortest([turn(call, CPU) for _ in range(tries)])


def overheads(model: LM, work: Workload, shape: PassShape) -> dict[str, float]:
    """Terms of PassCosts that are no part of a pass, on rows of this shape.

    `choose` and `choice` are there only where the native kernels choose views.
    """
    cache = work.at(shape)
    rows = shape.rows
    prompts = [[0] * (shape.context + 1)] * rows
    seqs = model.sequences(prompts, 1 << 20, cache, Sampler(), eos=())
    chains = [list(enumerate(row)) for row in work.tokens[:rows, :LEVELS].tolist()]

    def step(levels: int) -> float:
        logits = torch.zeros(rows, levels + 1, model.vocab, device=model.device)

        def around() -> None:
            cache.length.fill_(shape.context)
            seqs.length.fill_(shape.context + 1)
            tree = Tree.root(seqs.last).plant([chain[:levels] for chain in chains])
            seqs.commit(match(tree, logits, seqs.sampler, seqs))

        drawn = best_of(lambda: argmax(logits))  # the costs of a pass cover it
        return max(best_of(around) - drawn, 1e-6)

    root_alone = step(0)
    small = torch.zeros(rows, 64, device=model.device)
    square = torch.zeros(64, 64, device=model.device)
    wide = torch.zeros(rows, 1024, device=model.device, dtype=model.dtype)
    large = torch.zeros(WIDE, 1024, device=model.device, dtype=model.dtype)
    terms = {
        "step": root_alone * LOOP,
        "tree": max(step(LEVELS) - root_alone, 0.0) / (rows * LEVELS),
        "block": BLOCK_CALLS * best_of(lambda: linear(small, square)),
        "module": best_of(lambda: linear(wide, large)) / large.nbytes,
    }
    cache.length.fill_(shape.context)
    full = [n for n in model.architecture.with_keys if n not in model.windows]
    if full and model.backend.name == "native" and shape.context >= 64:
        shorter = replace(shape, context=shape.context // 8)
        long, short = (_choosing(work, each, full) for each in (shape, shorter))
        slots = (shape.context - shorter.context) * rows * len(full)
        terms["choose"] = max(long - short, 0.1 * long) / slots
        terms["choice"] = max(short - terms["choose"] * shorter.context * rows * len(full), 0.0)
    return terms


def _choosing(work: Workload, shape: PassShape, full: list[int]) -> float:
    """Seconds of choosing a view of these layers by scores, and of copying what it selects."""
    cache = work.at(shape)
    policy = Guided(min_budget=min(256, shape.context // 4))
    draws = torch.Generator().manual_seed(0)  # torch's own stays as the caller has seeded it
    size = (shape.rows, 1, 1, shape.context + 1)
    scores = [{n: torch.rand(size, generator=draws) for n in full} for _ in range(2)]
    turn = 0

    def choose() -> None:
        nonlocal turn
        turn += 1
        captured = Captures(KEPT, scores[turn % 2], cache.length + 1)
        policy.update(cache, captured)
        view = policy.view(cache)
        assert is_indexable(view) and view is not None
        view.copy(
            [(layer, b, cache.stored_row(layer, b)) for layer in full for b in range(shape.rows)]
        )

    return best_of(choose, 3)
