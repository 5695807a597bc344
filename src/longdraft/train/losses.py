"""Cross-entropy under a frozen head, whose logits are made, used for loss and gradient, and dropped part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longdraft.train.rows import IGNORE

LOGITS = 1 << 21  # numbers held at once: they stay in the processor's cache


def parts(vocab: int) -> int:
    """Rows of a part."""
    return max(16, LOGITS // vocab)


class _Head(torch.autograd.Function):
    """The gradient is found with the loss, since both need the same probabilities; the head itself gets none."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, matrix: Tensor, wanted: Tensor) -> Tensor:
        counted = (wanted != IGNORE).sum().clamp(min=1)
        x, gradient, size = normed.to(matrix.dtype), torch.empty_like(normed), parts(len(matrix))
        total = torch.zeros((), device=normed.device)
        for at in range(0, len(x), size):
            p, right = (x[at : at + size] @ matrix.T).softmax(-1), wanted[at : at + size, None]
            scored = right != IGNORE
            right = right.clamp(min=0)
            chance = p.gather(1, right)
            total -= (chance.float().clamp(min=1e-30).log() * scored).sum()
            p.scatter_(1, right, chance - 1)
            gradient[at : at + size] = (p @ matrix) * scored
        ctx.save_for_backward(gradient.div_(counted))
        return total / counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None


def by_matrix(normed: Tensor, matrix: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T at wanted [N], where that is not IGNORE; normed [N,d], matrix [V,d]."""
    with torch.autocast(normed.device.type, enabled=False):
        return _Head.apply(normed, matrix, wanted)  # type: ignore[return-value]


def by_function(normed: Tensor, head: Callable[[Tensor], Tensor], wanted: Tensor, vocab: int) -> Tensor:
    """The same for any head(normed [n,d]) -> logits [n,vocab], which is computed a second time for the gradient."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), y, ignore_index=IGNORE, reduction="sum")

    size, counted = parts(vocab), (wanted != IGNORE).sum().clamp(min=1)
    pairs = zip(normed.split(size), wanted.split(size), strict=True)
    found = [checkpoint(one, x, y, use_reentrant=False) for x, y in pairs]
    return torch.stack(found).sum() / counted  # type: ignore[arg-type]


class _Law(torch.autograd.Function):
    """As _Head, for a law in place of a token: the gradient of -sum q log p by the logits is p - q."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, matrix: Tensor, theirs: Tensor) -> Tensor:
        x, y = normed.to(matrix.dtype), theirs.to(matrix.dtype)
        gradient, size = torch.empty_like(normed), parts(len(matrix))
        total = torch.zeros((), device=normed.device)
        for at in range(0, len(x), size):
            q = (y[at : at + size] @ matrix.T).softmax(-1)
            logp = (x[at : at + size] @ matrix.T).log_softmax(-1)
            total -= (q * logp).float().sum()
            gradient[at : at + size] = (logp.exp_() - q) @ matrix
        ctx.save_for_backward(gradient.div_(len(x)))
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None


def law_by_matrix(normed: Tensor, matrix: Tensor, theirs: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T with the law that theirs @ matrix.T gives; both [N,d]."""
    with torch.autocast(normed.device.type, enabled=False):
        return _Law.apply(normed, matrix, theirs)  # type: ignore[return-value]


def law_by_function(normed: Tensor, head: Callable[[Tensor], Tensor], theirs: Tensor, vocab: int) -> Tensor:
    """The same for any head."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), head(y).float().softmax(-1), reduction="sum")

    size = parts(vocab)
    pairs = zip(normed.split(size), theirs.split(size), strict=True)
    return torch.stack([checkpoint(one, x, y, use_reentrant=False) for x, y in pairs]).sum() / len(normed)  # type: ignore[arg-type]
