"""The drafter protocol (only `grow` has no useful default), what kinds of drafters share, and beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from longdraft.core import (
    UNBOUNDED,
    Captures,
    CaptureSpec,
    ChainDraws,
    DraftLimits,
    KVView,
    PromptSpec,
    Sequences,
    Tree,
    Verdict,
)
from longdraft.models.lm import LM
from longdraft.ops import DRAFT
from longdraft.views.base import Policy


class Drafter:
    """Proposes tokens; never changes committed state. `grow` writes to scratch slots and to the drafter's own state.

    has_draft_probs: children are drawn without replacement from a distribution stored in the tree, as verify=reject
    needs. max_depth: the deepest level that a draft can have, if that is known. is_chain: unless limited, every draft
    is a chain of max_depth tokens.
    """

    has_draft_probs = False
    max_depth: int = UNBOUNDED
    is_chain: bool = False
    name: str = "drafter"  # of what proposes the nodes, in traces: a key of PROPOSERS

    def proposed_by(self, node: int) -> str:
        """The name of what proposed this node of the latest draft."""
        return self.name

    def view_read(self) -> KVView | None:
        """The view of the sequence's slots that the latest draft read under; None: it read all of them, or none."""
        return None

    def captures(self) -> CaptureSpec:
        """What the verify pass must capture for `update`."""
        return CaptureSpec()

    def prompt_captures(self) -> PromptSpec:
        """What a row's prefill should keep in seqs.prompt_states for `start` and `enter`, which may not find it."""
        return PromptSpec()

    def rewind(self, seqs: Sequences) -> None:
        """Remove from the drafter's own caches what seqs does not contain: a hierarchy takes back its inner drafts."""

    def ready(self, seqs: Sequences) -> None:
        """Read what a draft needs, such as the prompt, which may take long. `grow` does this if it was not called."""

    def start(self, seqs: Sequences) -> None:
        """Called once, after prefill; a session, whose rows enter later, calls it before there are any."""

    def reads(self, seqs: Sequences, depth: int) -> float:
        """Bytes of weights and keys that the latest draft, `depth` levels deep, has read."""
        return 0

    def least_cost(self, seqs: Sequences) -> float:
        """What a drafted level costs at least, as a share of a plain step: known before anything was drafted."""
        return 0

    def enter(self, seqs: Sequences, row: int) -> None:
        """Row `row`, the last one, has been prefilled and joins the others, whose state stays.

        The next step drafts nothing, and `update` is called for it. By default, all rows start anew.
        """
        self.start(seqs)

    def leave(self, seqs: Sequences, row: int) -> None:
        """Row `row` has left; if it was not the last, the last one has taken its place. seqs: the rows that remain.

        The next step may draft if this is overridden, so the remaining rows' state must be kept or not be needed.
        """
        self.start(seqs)

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        """The tree with drafted nodes added within the limits, or unchanged for no draft."""
        return tree

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        """Called after a step's commit. Steps may be left out, except the last one before a draft."""


D = TypeVar("D", bound=Drafter)


class UnderView(Drafter):
    """Drafts over a policy's view of the target's cache. widths: nodes per level ([1] * gamma is a chain)."""

    def __init__(self, target: LM, policy: Policy, widths: Sequence[int]):
        self.target, self.policy, self.widths = target, policy, widths
        self.max_depth, self.is_chain = len(widths), set(widths) == {1}
        self._latest: KVView | None = None

    def look(self, seqs: Sequences) -> KVView | None:
        """The view for the draft that begins; `view_read` returns it until the next one."""
        self._latest = self.policy.view(seqs.cache)
        return self._latest

    def view_read(self) -> KVView | None:
        return self._latest

    def captures(self) -> CaptureSpec:
        return self.policy.captures()

    def ready(self, seqs: Sequences) -> None:
        self.policy.ready(self.target, seqs.cache)

    def start(self, seqs: Sequences) -> None:
        self.policy.start(self.target, seqs.tokens, seqs.cache)

    def enter(self, seqs: Sequences, row: int) -> None:
        self.policy.enter(self.target, seqs.tokens, seqs.cache, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        self.policy.leave(self.target, seqs.tokens, seqs.cache, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        self.policy.update(seqs.cache, captured)


class Combined(Drafter, Generic[D]):
    """Made of other drafters: whatever changes or reads their state is done for all of them, in order."""

    drafters: Sequence[D]

    def proposed_by(self, node: int) -> str:
        return self.drafters[0].proposed_by(node)

    def view_read(self) -> KVView | None:
        return next((view for d in self.drafters if (view := d.view_read()) is not None), None)

    def prompt_captures(self) -> PromptSpec:
        return PromptSpec.union(d.prompt_captures() for d in self.drafters)

    def rewind(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.rewind(seqs)

    def ready(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.ready(seqs)

    def start(self, seqs: Sequences) -> None:
        for d in self.drafters:
            d.start(seqs)

    def reads(self, seqs: Sequences, depth: int) -> float:
        return sum(d.reads(seqs, depth) for d in self.drafters)

    def least_cost(self, seqs: Sequences) -> float:
        return max(d.least_cost(seqs) for d in self.drafters)

    def enter(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.enter(seqs, row)

    def leave(self, seqs: Sequences, row: int) -> None:
        for d in self.drafters:
            d.leave(seqs, row)

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        for d in self.drafters:
            d.update(seqs, tree, verdict, captured)


class Sequential(Combined[Drafter]):
    """Drafters applied in order to one tree. At most one of them may use captures."""

    def __init__(self, *drafters: Drafter):
        self.drafters = drafters
        self.max_depth = max(d.max_depth for d in drafters)
        self._ends: list[int] = []  # by drafter, the number of nodes of the tree once it has added its own
        self.captures()

    def proposed_by(self, node: int) -> str:
        return next((d.proposed_by(node) for d, end in zip(self.drafters, self._ends, strict=True) if node < end), "")

    def captures(self) -> CaptureSpec:
        specs = [spec for spec in (d.captures() for d in self.drafters) if spec.rows or spec.hidden]
        if len(specs) > 1:
            raise ValueError("at most one drafter of a Sequential may use captures of the verify pass")
        return specs[0] if specs else CaptureSpec()

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        self._ends = []
        for d in self.drafters:
            tree = d.grow(tree, seqs, limits.within(width=max(limits.width - tree.widest, 0)))
            self._ends.append(tree.size)
        return tree


def beam(
    step: Callable[[Tree, int], Tensor],
    tree: Tree,
    widths: Sequence[int],
    seqs: Sequences,
    limits: DraftLimits,
    chain: Callable[[ChainDraws], Tensor] | None = None,
) -> Tree:
    """The root extended by the nodes of highest cumulative score, widths[i] at depth i+1 (LongSpec sec. 3.3).

    step(tree, start) -> logits [B,W,V] of nodes [start, size). chain(draws) -> tokens [B,count], if given, drafts a
    chain (widths [1]*count) in one call. Raises ValueError if the tree has drafts.

    Where the tree keeps draft probabilities, every node gets an equal number of children, drawn from its own
    distribution with noise used in this step alone: this distribution may depend on drafts refused before (through a
    guided view), so the noise that drew them must not be used again.
    """
    if tree.size != 1:
        raise ValueError("this drafter starts from the root alone: put it first in a Sequential")
    widths = [min(width, limits.width) for width in list(widths)[: limits.depth]]
    if chain is not None and tree.draft_probs is None and widths and set(widths) == {1}:
        draws = seqs.sampler.chain(len(widths), seqs)
        if draws is not None:
            return Tree.chain(torch.cat([tree.tokens, chain(draws)], 1))
    seed = None if tree.draft_probs is None else (seqs.seed ^ DRAFT) + (seqs.length << 32)
    start, total = 0, torch.zeros_like(tree.tokens, dtype=torch.float32)
    for width in widths:
        logits = step(tree, start)
        B, W, V = logits.shape
        scores = seqs.sampler.scores(logits, tree, seqs, start, seed, summed=tree.draft_probs is None and W * width > 1)
        if tree.draft_probs is not None:
            tree = tree.with_draft_probs(start, seqs.sampler.law(logits, tree, seqs, start))
            tokens = scores.topk(min(max(1, width // W), V), -1).indices
            parent = torch.arange(start, start + W, device=tokens.device)[:, None].expand_as(tokens)
            tokens, parent = tokens.reshape(B, -1), parent.reshape(B, -1)
        elif W == width == 1:  # a chain needs no normalisation
            tokens = scores.argmax(-1)
            parent = torch.full_like(tokens, start)
        else:
            total, flat = (total[..., None] + scores).view(B, W * V).topk(min(width, W * V))
            tokens, parent = flat % V, start + flat // V
        tree, start = tree.grow(parent, tokens), tree.size
    return tree
