"""Cross-entropy under a frozen head, whose logits are made, used for loss and gradient, and dropped part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longdraft.training.rows import IGNORE

LOGITS = 1 << 21  # numbers held at once: they stay in the processor's cache


def parts(vocab: int) -> int:
    """Rows of a part."""
    return max(16, LOGITS // vocab)


# (rows of this part, their logits, which may be overwritten) -> (summed loss, its gradient by the logits)
Score = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


class _Head(torch.autograd.Function):
    """The gradient is found with the loss, since both need the same probabilities; the head itself gets none."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, matrix: Tensor, score: Score, counted: Tensor) -> Tensor:
        x, gradient, size = normed.to(matrix.dtype), torch.empty_like(normed), parts(len(matrix))
        total = torch.zeros((), device=normed.device)
        for at in range(0, len(x), size):
            part = slice(at, at + size)
            loss, by_logits = score(part, x[part] @ matrix.T)
            total += loss
            gradient[part] = by_logits @ matrix
        ctx.save_for_backward(gradient.div_(counted))
        return total / counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None, None


def by_matrix(normed: Tensor, matrix: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T at wanted [N], where that is not IGNORE; normed [N,d], matrix [V,d]."""

    def score(part: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        p, right = logits.softmax(-1), wanted[part, None]
        scored, right = right != IGNORE, right.clamp(min=0)
        chance = p.gather(1, right)
        loss = -(chance.float().clamp(min=1e-30).log() * scored).sum()
        return loss, p.scatter_(1, right, chance - 1) * scored

    with torch.autocast(normed.device.type, enabled=False):
        return _Head.apply(normed, matrix, score, _counted(wanted))  # type: ignore[return-value]


def law_by_matrix(normed: Tensor, matrix: Tensor, theirs: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T with the law that theirs @ matrix.T gives; both [N,d]."""

    def score(part: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        q, logp = (theirs[part].to(matrix.dtype) @ matrix.T).softmax(-1), logits.log_softmax(-1)
        return -(q * logp).float().sum(), logp.exp_() - q

    with torch.autocast(normed.device.type, enabled=False):
        return _Head.apply(normed, matrix, score, torch.tensor(len(normed)))  # type: ignore[return-value]


def by_function(normed: Tensor, head: Callable[[Tensor], Tensor], wanted: Tensor, vocab: int) -> Tensor:
    """As by_matrix for any head(normed [n,d]) -> logits [n,vocab], which is computed a second time for the gradient."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), y, ignore_index=IGNORE, reduction="sum")

    return _again(one, normed, wanted, vocab) / _counted(wanted)


def law_by_function(normed: Tensor, head: Callable[[Tensor], Tensor], theirs: Tensor, vocab: int) -> Tensor:
    """As law_by_matrix for any head."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), head(y).float().softmax(-1), reduction="sum")

    return _again(one, normed, theirs, vocab) / len(normed)


def _again(one: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, vocab: int) -> Tensor:
    size = parts(vocab)
    pairs = zip(x.split(size), y.split(size), strict=True)
    return torch.stack([checkpoint(one, *pair, use_reentrant=False) for pair in pairs]).sum()  # type: ignore[arg-type]


def _counted(wanted: Tensor) -> Tensor:
    return (wanted != IGNORE).sum().clamp(min=1)
