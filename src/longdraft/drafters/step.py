"""Draft, verify, commit: one round, at whatever level it is played."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longdraft.models.lm import LM, KVView
from longdraft.core.sequences import Sequences
from longdraft.core.tree import Tree
from longdraft.core.verify import Verdict, Verifier, match, reject

if TYPE_CHECKING:
    from longdraft.drafters.base import Drafter


def clock(device: torch.device) -> float:
    """Seconds, read once the device has done what it was asked for: a GPU works on after a call has returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@dataclass
class Round:
    """What one round did: count [B] tokens taken by each row, at most the verdict's."""

    tree: Tree
    verdict: Verdict
    count: Tensor
    draft_s: float


def play(
    target: LM,
    drafter: Drafter,
    seqs: Sequences,
    verify: Verifier = match,
    view: KVView | None = None,
    draft: bool = True,
) -> Round:
    """One round on seqs. view: what the verify pass may read (a level below the top verifies under one).

    Without a draft it is a plain decoding step that also fills the taps.
    """
    begin = clock(target.device)
    tree = Tree.root(seqs.last)
    if verify is reject:
        tree = tree.with_law(0, torch.zeros(len(seqs.length), 1, target.vocab, device=target.device))
    if draft:
        tree = drafter.grow(tree, seqs)
    drafted = clock(target.device) - begin
    taps = drafter.wants()
    logits = target(tree, seqs.cache, view=view, taps=taps)
    verdict = verify(tree, logits, seqs)
    count = seqs.commit(verdict)
    taps.target, taps.logits, taps.accepted = target, logits, verdict.path.gather(1, verdict.count[:, None] - 1)[:, 0]
    drafter.observe(seqs, tree, verdict, taps)
    return Round(tree, verdict, count, drafted)
