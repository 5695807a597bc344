"""Decides which drafted tokens are accepted.

A verifier: (tree, logits [B,T,V], sampler, rows) -> Verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.core.rows import Rows
from longdraft.core.sampling_protocol import Sampling
from longdraft.core.tree import Tree
from longdraft.errors import InputError
from longdraft.ops import ACCEPT, RESIDUAL, gumbel, uniform


@dataclass
class Verdict:
    """The accepted path of each row and the tokens that it emits.

    path [B,A]: nodes from the root down. count [B]: how many are real (>= 1). emitted [B,A]: the
    tokens they yield. emitted[:, i] is the token after node path[:, i]: an accepted draft for i <
    count-1, the bonus token at count-1.
    """

    path: Tensor
    count: Tensor
    emitted: Tensor


Verifier = Callable[[Tree, Tensor, Sampling, Rows], Verdict]


def walk(tree: Tree, chosen: Tensor) -> Verdict:
    """Follow the target's choices from the root down through drafted nodes.

    chosen [B,T]: the target's choice at each node.
    """
    rows = torch.stack([tree.parent, tree.tokens, chosen], 1).tolist()  # one copy from the device
    paths = [_down(*row) for row in rows]
    most = max(map(len, paths))
    path = torch.tensor([p + p[-1:] * (most - len(p)) for p in paths], device=chosen.device)
    return Verdict(
        path, torch.tensor([len(p) for p in paths], device=chosen.device), chosen.gather(1, path)
    )


def _down(parent: list[int], tokens: list[int], chosen: list[int]) -> list[int]:
    """The path of one row. Where siblings have equal tokens, the first is followed."""
    children = {(parent[i], tokens[i]): i for i in range(len(parent) - 1, 0, -1)}
    path = [0]
    while (child := children.get((path[-1], chosen[path[-1]]))) is not None:
        path.append(child)
    return path


def match(tree: Tree, logits: Tensor, sampler: Sampling, rows: Rows) -> Verdict:
    """Draw the target's token once per node and follow it while it was drafted.

    The output equals plain decoding token for token, for any tree from any drafter, because the
    draw at a node depends only on (seed, position, the node's own path).
    """
    return walk(tree, sampler.draw(logits, tree, rows))


def reject(tree: Tree, logits: Tensor, sampler: Sampling, rows: Rows) -> Verdict:
    """Speculative sampling by p/q, which keeps the target's distribution.

    The tokens may differ from those of plain decoding. A node's children with q(x) > 0, in index
    order, must be draws without replacement from q = tree.draft_probs at that node. Child x is
    accepted with probability min(1, p(x)/q(x)); if it is rejected, p becomes the residual max(p-q,
    0) and q loses x, both normalized. When no child is left, the target draws from p, and a child
    equal to the draw is followed, so children outside q's support (a level wider than the tokens
    top-p keeps) stay unbiased.
    """
    if tree.draft_probs is None:
        raise InputError(
            "verify=reject needs a drafter that keeps its draft probabilities; use verify=match"
        )
    target = sampler.law(logits, tree, rows)
    verdicts = [([0], [0])] * len(target)  # a row that is done uses nothing of its verdict
    for b, done in enumerate(rows.done.tolist()):
        if not done:
            verdicts[b] = _reject_row(tree, target[b], rows, b)
    most = max(len(path) for path, _ in verdicts)
    table = [[r[i] + [r[i][-1]] * (most - len(r[i])) for r in verdicts] for i in (0, 1)]
    path, emitted = (torch.tensor(t, device=target.device) for t in table)
    return Verdict(path, torch.tensor([len(r[0]) for r in verdicts], device=target.device), emitted)


def _reject_row(tree: Tree, target: Tensor, rows: Rows, b: int) -> tuple[list[int], list[int]]:
    """One row of `reject`: its path and the tokens it emits. target [T,V]: probabilities."""
    assert tree.draft_probs is not None
    here = 0
    seed = rows.seed[b : b + 1]
    path = [0]
    emitted = []
    while True:
        position = (rows.length[b] + tree.depth[b, here]).view(1, 1)
        p = target[here].double()
        q = tree.draft_probs[b, here].double()
        children = (tree.parent[b] == here).nonzero()[:, 0].tolist()
        accepted = None
        for rank, child in enumerate(children):
            token = tree.tokens[b, child]
            if q[token] == 0:
                continue
            coin = uniform(seed ^ ACCEPT, position, torch.tensor([rank], device=token.device)).view(
                ()
            )
            if coin * q[token] < p[token]:
                accepted = child
                break
            residual = (p - q).clamp(min=0)
            p = residual / residual.sum() if residual.sum() > 0 else p
            q = q.scatter(0, token, 0.0)
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
