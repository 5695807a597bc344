"""Heads on a hidden state predict several tokens ahead: chained heads (TokenSwift) and separate
ones (Medusa).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longdraft.core import Captures, CaptureSpec, DraftLimits, Sequences, Tree, Verdict, without
from longdraft.costs.counts import counts_of
from longdraft.drafters.base import Drafter
from longdraft.drafters.block_costs import Read, weights_read
from longdraft.drafters.heads.price import HeadsPrice, MedusaPrice
from longdraft.drafters.marginals import BestPaths
from longdraft.drafters.under_view import UnderView
from longdraft.drafters.vocabulary import DraftVocabulary, draft_logits, read_for_logits
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import size_of
from longdraft.views.base import Policy

NODES = 1024
M = TypeVar("M", "ChainedHeads", "MedusaHeads")
# Per level, the number of children of each node of the level above; zeros at the end may be left
# out.
Counts = Sequence[Sequence[int]]
# Medusa's fixed tree (its "mc_sim_7b_63"): 63 nodes from the ten best tokens of each head.
SPARSE: Counts = (
    (10,),
    (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
    (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
    (2,),
)


def cartesian(widths: Sequence[int]) -> Counts:
    """Each node of depth i has widths[i] children: TokenSwift's [1,3,3,3] has 1, 3, 9 and 27
    nodes.
    """
    if prod(widths) > NODES:
        raise InputError(
            f"a tree of widths {list(widths)} has over {NODES} leaves: give smaller widths"
        )
    return [[width] * prod(widths[:depth]) for depth, width in enumerate(widths)]


def sizes(counts: Counts) -> list[int]:
    """The nodes of each level of such a tree."""
    return [sum(level) for level in counts]


def add_product(
    tree: Tree, logits: Tensor, counts: Counts, seqs: Sequences, limits: DraftLimits
) -> Tree:
    """Grow a tree from the root; logits [B,D,V] are those of depths 1..D, shared by all nodes of a
    level.

    A node's children are the top-k of its own processed scores: penalties count its own path, and
    at a temperature the noise is the target's, so the children are draws without replacement,
    coupled to the target's draw.
    """
    if tree.size != 1:
        raise ValueError("heads can only grow from the root: put them first")
    start = 0
    for level, children in list(enumerate(counts))[: min(logits.shape[1], limits.depth)]:
        children = list(children)[: tree.size - start]
        here = logits[:, level, None].expand(-1, len(children), -1)
        ranked = (
            seqs.sampler.scores(here, tree, seqs, start)
            .topk(min(max(children), logits.shape[-1]), -1)
            .indices
        )
        pairs = [
            (node, rank)
            for node, n in enumerate(children)
            for rank in range(min(n, ranked.shape[-1]))
        ]
        pairs = sorted(sorted(pairs, key=lambda p: (p[0] + 1) * (p[1] + 1))[: limits.width])
        node, rank = torch.tensor(pairs, device=logits.device).T
        parent = (start + node).expand(len(tree.tokens), -1)
        start = tree.size
        tree = tree.grow(parent, ranked[:, node, rank])
    return tree


class ChainedHeads(nn.Module):
    """h_i = h_{i-1} + W_i RMS_in(h_{i-1}), logits G RMS_out(h_i): head i reads head i-1 (TokenSwift
    eq. 1).

    h_0 is the target's residual stream after its last layer, before the final norm; G is its output
    matrix. W_i starts at zero, so an untrained head predicts from h_0 alone.
    """

    def __init__(
        self, dim: int, heads: int = 3, eps: float = 1e-6, vocabulary: DraftVocabulary | None = None
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = nn.Parameter(torch.zeros(heads, dim, dim))
        self.norm_in, self.norm_out = (nn.Parameter(torch.ones(heads, dim)) for _ in range(2))
        self.eps = eps

    def __len__(self) -> int:
        return len(self.weight)

    def forward(self, hidden: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """hidden h_0 [..,d] -> logits [..,heads,V]; head i predicts token t+2+i from the state of
        token t.
        """
        hidden = hidden.to(self.weight.dtype)
        normed = []
        for w, norm_in, norm_out in zip(self.weight, self.norm_in, self.norm_out, strict=True):
            hidden = hidden + F.linear(F.rms_norm(hidden, norm_in.shape, norm_in, self.eps), w)
            normed.append(F.rms_norm(hidden, norm_out.shape, norm_out, self.eps))
        return project(torch.stack(normed, -2))


class MedusaHeads(nn.Module):
    """Each head reads only the target's normed state: h + SiLU(Wh + b), then an output matrix
    (Medusa sec. 2.1).

    W and b start at zero, as published. own: the heads' output matrices [heads,V,d]; None: they use
    the target's, or its rows for the vocabulary.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        own: Tensor | None = None,
        vocabulary: DraftVocabulary | None = None,
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = nn.Parameter(torch.zeros(heads, dim, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))
        self.out = None if own is None else nn.Parameter(own)

    def __len__(self) -> int:
        return len(self.weight)

    def forward(self, normed: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """normed [..,d] -> logits [..,heads,V]; head i predicts token t+2+i from the state of token
        t.
        """
        normed = normed.to(self.weight.dtype)
        states = normed[..., None, :] + F.silu(
            torch.einsum("...d,hed->...he", normed, self.weight) + self.bias
        )
        return (
            project(states)
            if self.out is None
            else torch.einsum("...hd,hvd->...hv", states, self.out)
        )


class Heads(UnderView):
    """The target drafts a token under a partial view, chained heads those after it (TokenSwift):
    two passes a step.
    """

    name = "heads"

    def __init__(self, target: LM, module: ChainedHeads, policy: Policy, widths: Sequence[int]):
        if len(widths) != len(module) + 1:
            drafted = f"{len(module)} heads and the target draft {len(module) + 1} levels"
            raise InputError(f"{len(widths)} widths are given; {drafted}")
        super().__init__(target, policy, widths)
        self.module = module
        self.counts = cartesian(widths)
        self.project = partial(draft_logits, target, module.vocabulary)

    def price(self) -> HeadsPrice:
        return HeadsPrice(
            max_depth=self.max_depth,
            counts=counts_of(self.target),
            policy=self.policy,
            widths=self.widths,
            read=weights_read(size_of(self.module), self.target, self.module.vocabulary),
            heads=len(self.module),
            vocab=self.target.vocab,
            sizes=sizes(self.counts),
        )

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if not limits.depth:
            return tree
        last = self.target.depth
        captured = Captures(CaptureSpec(hidden=(last,)))
        first = self.target(tree, seqs.cache, view=self.look(seqs), captured=captured)
        later = self.module(captured.states[last][:, -1], self.project)
        return add_product(
            tree, torch.cat([first.float(), later.float()], 1), self.counts, seqs, limits
        )


class Medusa(Drafter):
    """Heads read the last verified token's state, captured in the verify pass: a draft needs no
    pass of the target.
    """

    name = "heads"
    usual: tuple[float, float] = (0.4, 0.3)

    def __init__(self, target: LM, module: MedusaHeads, shape: Counts | BestPaths = SPARSE):
        self.target = target
        self.module = module
        self.shape = shape
        self.project = partial(draft_logits, target, module.vocabulary)
        if isinstance(shape, BestPaths):
            self.max_depth = min(len(module), shape.nodes)
            self.is_chain = shape.nodes == 1
        elif len(shape) > len(module):
            raise InputError(
                f"a tree of depth {len(shape)} needs {len(shape)} heads; the drafter has "
                f"{len(module)}"
            )
        else:
            self.max_depth = len(shape)
            self.is_chain = all(level == [1] for level in shape)
        self._last = target.depth

    def captures(self) -> CaptureSpec:
        return CaptureSpec(hidden=(self._last,))

    def start(self, seqs: Sequences) -> None:
        self._state: Tensor | None = (
            None  # [B,d] of each row's last verified token; None before the first step
        )

    def leave(self, seqs: Sequences, row: int) -> None:
        self._state = None if self._state is None else without(self._state, row)

    def price(self) -> MedusaPrice:
        shape = self.shape
        used = 0.0
        if self.module.out is None:
            used = read_for_logits(self.target, self.module.vocabulary)
        return MedusaPrice(
            max_depth=self.max_depth,
            usual=self.usual,
            read=Read(size_of(self.module), used, self.target.dtype.itemsize),
            heads=len(self.module),
            vocab=self.target.vocab,
            sizes=() if isinstance(shape, BestPaths) else sizes(shape),
            paths=shape.nodes if isinstance(shape, BestPaths) else 0,
        )

    def update(self, seqs: Sequences, tree: Tree, verdict: Verdict, captured: Captures) -> None:
        states = captured.states[self._last]
        rows = torch.arange(len(states), device=states.device)
        self._state = states[rows, verdict.path[rows, verdict.count - 1]]

    def grow(self, tree: Tree, seqs: Sequences, limits: DraftLimits) -> Tree:
        if not limits.depth or self._state is None:
            return tree
        logits = self.module(self.target.norm(self._state), self.project).float()
        if isinstance(self.shape, BestPaths):
            return self.shape.add(tree, logits, seqs, limits)
        return add_product(tree, logits, self.shape, seqs, limits)


def random_heads(target: LM, seed: int) -> ChainedHeads:
    """Untrained chained heads with small random weights."""
    eps = getattr(target.config, "rms_norm_eps", 1e-6)
    return _filled(ChainedHeads(target.config.hidden_size, eps=eps), target, seed)


def random_medusa(target: LM, seed: int) -> MedusaHeads:
    """Untrained Medusa heads that use the target's output matrix."""
    return _filled(MedusaHeads(target.config.hidden_size), target, seed)


def _filled(module: M, target: LM, seed: int) -> M:
    size = module.weight.shape[-1] ** -0.5 / 2
    nn.init.normal_(module.weight, std=size, generator=torch.Generator().manual_seed(seed))
    return module.to(target.device, target.dtype).eval().requires_grad_(False)
