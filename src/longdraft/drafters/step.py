"""One decoding step (draft, verify, commit), at the top level or inside a hierarchical drafter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import torch
from torch import Tensor

from longdraft.core import (
    PAD,
    Captures,
    DraftLimits,
    KVView,
    Sequences,
    Tree,
    Verdict,
    Verifier,
    match,
    reject,
)
from longdraft.drafters.base import Drafter
from longdraft.models.lm import LM


def clock(device: torch.device) -> float:
    """Seconds, read after the device has finished its queued work: GPU calls return before that."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@dataclass
class StepResult:
    """The outcome of one step.

    logits [B,T,V]: the target's, of the tree's nodes. count [B]: tokens committed to each row, at
    most the verdict's.
    """

    tree: Tree
    logits: Tensor
    verdict: Verdict
    count: Tensor
    draft_s: float

    @cached_property
    def drafted(self) -> list[int]:
        """How deep each row's draft was; 0 without a draft."""
        if self.tree.size == 1:
            return [0] * len(self.tree.tokens)
        return self.tree.depth.masked_fill(self.tree.parent == PAD, 0).amax(1).tolist()


def speculative_step(
    target: LM,
    drafter: Drafter,
    seqs: Sequences,
    verify: Verifier = match,
    view: KVView | None = None,
    draft: bool = True,
) -> StepResult:
    """Draft, verify and commit once. view: what the verify pass may read (default: everything).

    draft=False is a plain decoding step that also captures what the drafter needs.
    """
    begin = clock(target.device)
    tree = Tree.root(seqs.last)
    if verify is reject:
        tree = tree.with_draft_probs(
            0, torch.zeros(len(seqs.length), 1, target.vocab, device=target.device)
        )
    if draft:
        tree = drafter.grow(tree, seqs.to_draft(), DraftLimits(seqs.room))
        if seqs.is_bounded:
            tree = tree.within(seqs.deepest)
    drafted = clock(target.device) - begin
    captured = Captures(drafter.captures())
    if seqs.sampler.constrained:
        seqs.sampler.prepare(tree, seqs)
    logits = target(tree, seqs.cache, view=view, captured=captured)
    verdict = verify(tree, logits, seqs.sampler, seqs)
    count = seqs.commit(verdict)
    captured.target = target
    captured.logits = logits
    captured.accepted = verdict.path.gather(1, verdict.count[:, None] - 1)[:, 0]
    drafter.update(seqs, tree, verdict, captured)
    return StepResult(tree, logits, verdict, count, drafted)
