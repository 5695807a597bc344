"""What of a drafted tree becomes text. A verifier: (tree, logits [B,T,V], seqs) -> Verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.ops import ACCEPT, RESIDUAL, gumbel, uniform

if TYPE_CHECKING:
    from longdraft.core.sequences import Sequences


@dataclass
class Verdict:
    """path [B,A] nodes from the root down, count [B] how many are real (>= 1), emitted [B,A] the tokens they yield.

    emitted[:, i] is the token after node path[:, i]: drafted and accepted for i < count-1, the bonus token at count-1.
    """

    path: Tensor
    count: Tensor
    emitted: Tensor


Verifier = Callable[[Tree, Tensor, "Sequences"], Verdict]


def walk(tree: Tree, chosen: Tensor) -> Verdict:
    """From the root down along children equal to the target's own choice, chosen [B,T]: one choice per node."""
    rows = torch.stack([tree.parent, tree.tokens, chosen], 1).tolist()  # one copy, where they lie on a device
    paths = [_down(*row) for row in rows]
    most = max(map(len, paths))
    path = torch.tensor([p + p[-1:] * (most - len(p)) for p in paths], device=chosen.device)
    return Verdict(path, torch.tensor([len(p) for p in paths], device=chosen.device), chosen.gather(1, path))


def _down(parent: list[int], tokens: list[int], chosen: list[int]) -> list[int]:
    """Of a node's equal children the first is followed."""
    children = {(parent[i], tokens[i]): i for i in range(len(parent) - 1, 0, -1)}
    path: list[int] = []
    here: int | None = 0
    while here is not None:
        path.append(here)
        here = children.get((here, chosen[here]))
    return path


def match(tree: Tree, logits: Tensor, seqs: Sequences) -> Verdict:
    """Draw the target's token once per node and follow it while it was drafted.

    The output equals plain decoding token for token, for any tree from any drafter, because the draw at a node depends
    on (seed, position, the node's own path) only.
    """
    return walk(tree, seqs.sampler.draw(logits, tree, seqs))


def reject(tree: Tree, logits: Tensor, seqs: Sequences) -> Verdict:
    """Speculative sampling by p/q: keeps the target's law (not plain decoding's very tokens).

    A node's children with q(x) > 0, in index order, must be draws without replacement from q = tree.law at that node.
    Child x is accepted with probability min(1, p(x)/q(x)); refused, p becomes the residual max(p-q, 0) and q loses x,
    both normalised. When none is left the target draws from p, and any child that equals the draw is followed: that is
    how a child that q cannot draw (a level wider than top-p leaves tokens) is used without a bias.
    """
    if tree.draft_probs is None:
        raise InputError("verify=reject needs a drafter that keeps the law it draws from; use verify=match")
    probs = seqs.sampler.processed(logits, tree, seqs)
    greedy = seqs.sampler.temperature == 0
    target = torch.zeros_like(probs).scatter_(-1, probs.argmax(-1, keepdim=True), 1.0) if greedy else probs.softmax(-1)
    over = ([0], [0])  # a row that is done takes nothing of its verdict
    rows = [over if done else _reject_row(tree, target[b], seqs, b) for b, done in enumerate(seqs.done.tolist())]
    most = max(len(path) for path, _ in rows)
    table = [[r[i] + [r[i][-1]] * (most - len(r[i])) for r in rows] for i in (0, 1)]
    path, emitted = (torch.tensor(t, device=probs.device) for t in table)
    return Verdict(path, torch.tensor([len(r[0]) for r in rows], device=probs.device), emitted)


def _reject_row(tree: Tree, target: Tensor, seqs: Sequences, b: int) -> tuple[list[int], list[int]]:
    """One row of `reject`: the path and the tokens emitted. target [T,V]."""
    assert tree.draft_probs is not None
    here, path, emitted, seed = 0, [0], [], seqs.seed[b : b + 1]
    while True:
        position = (seqs.length[b] + tree.depth[b, here]).view(1, 1)
        p, q = target[here].double(), tree.draft_probs[b, here].double()
        children = (tree.parent[b] == here).nonzero()[:, 0].tolist()
        accepted = None
        for rank, child in enumerate(children):
            x = tree.tokens[b, child]
            if q[x] == 0:
                continue
            coin = uniform(seed ^ ACCEPT, position, torch.tensor([rank], device=x.device)).view(())
            if coin * q[x] < p[x]:
                accepted = child
                break
            residual = (p - q).clamp(min=0)
            p = residual / residual.sum() if residual.sum() > 0 else p
            q = q.scatter(0, x, 0.0)
            q = q / q.sum().clamp(min=1e-300)
        if accepted is None:
            noise = gumbel(seed ^ RESIDUAL, position, len(p)).view(-1)
            drawn = int((p.log() + noise).argmax())
            accepted = next((c for c in children if int(tree.tokens[b, c]) == drawn), None)
            if accepted is None:
                return path, [*emitted, drawn]
        emitted.append(int(tree.tokens[b, accepted]))
        path.append(accepted)
        here = accepted
