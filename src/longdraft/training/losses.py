"""Cross-entropy under a frozen head, computed chunk by chunk.

So all logits are never stored at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longdraft.training.rows import IGNORE

LOGITS = 1 << 21  # logits held at once: few enough for the processor's cache
ON_GPU = 1 << 28  # enough that a GPU computes them in few launches


def chunk_rows(vocab: int, device: torch.device) -> int:
    """Rows of one chunk."""
    return max(16, (LOGITS if device.type == "cpu" else ON_GPU) // vocab)


# (rows of the chunk, their logits, which may be overwritten) -> (summed loss, its gradient by the
# logits)
Score = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


class _Head(torch.autograd.Function):
    """Computes loss and gradient together, because both need the probabilities.

    The head gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, normed: Tensor, matrix: Tensor, score: Score, counted: Tensor) -> Tensor:
        states = normed.to(matrix.dtype)
        gradient = torch.empty_like(normed)
        size = chunk_rows(len(matrix), normed.device)
        total = torch.zeros((), device=normed.device)
        for begin in range(0, len(states), size):
            chunk = slice(begin, begin + size)
            loss, by_logits = score(chunk, states[chunk] @ matrix.T)
            total += loss
            gradient[chunk] = by_logits @ matrix
        ctx.save_for_backward(gradient.div_(counted))
        return total / counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None, None


def by_matrix(normed: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T with labels [N], except IGNORE.

    normed [N,d], matrix [V,d].
    """

    def score(chunk: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        p = logits.softmax(-1)
        right = labels[chunk, None]
        scored = right != IGNORE
        right = right.clamp(min=0)
        chance = p.gather(1, right)
        loss = -(chance.float().clamp(min=1e-30).log() * scored).sum()
        return loss, p.scatter_(1, right, chance - 1) * scored

    with torch.autocast(normed.device.type, enabled=False):
        return _Head.apply(normed, matrix, score, _counted(labels))  # type: ignore[return-value]


def distribution_by_matrix(normed: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of normed @ matrix.T with the distribution of targets @ matrix.T.

    normed, targets [N,d].
    """

    def score(chunk: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
        q = (targets[chunk].to(matrix.dtype) @ matrix.T).softmax(-1)
        logp = logits.log_softmax(-1)
        return -(q * logp).float().sum(), logp.exp_() - q

    with torch.autocast(normed.device.type, enabled=False):
        return _Head.apply(normed, matrix, score, torch.tensor(len(normed)))  # type: ignore[return-value]


def by_function(
    normed: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, vocab: int
) -> Tensor:
    """Like by_matrix, for any head(normed [n,d]) -> logits [n,vocab].

    The logits are computed again for the gradient.
    """

    def chunk_loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), y, ignore_index=IGNORE, reduction="sum")

    return _in_chunks(chunk_loss, normed, labels, vocab) / _counted(labels)


def distribution_by_function(
    normed: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, vocab: int
) -> Tensor:
    """Like distribution_by_matrix, for any head."""

    def chunk_loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), head(y).float().softmax(-1), reduction="sum")

    return _in_chunks(chunk_loss, normed, targets, vocab) / len(normed)


def _in_chunks(
    chunk_loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, vocab: int
) -> Tensor:
    """Sum of `chunk_loss` over chunks of x and y.

    The logits are computed again in the backward pass.
    """
    size = chunk_rows(vocab, x.device)
    pairs = zip(x.split(size), y.split(size), strict=True)
    return torch.stack([checkpoint(chunk_loss, *pair, use_reentrant=False) for pair in pairs]).sum()  # type: ignore[arg-type]


def draft_ids(wanted: Tensor, tokens: Tensor, vocab: int) -> Tensor:
    """The target's tokens as indices of a draft vocabulary, tokens [count].

    IGNORE for tokens that are not in it.
    """
    index = torch.full((vocab,), IGNORE, device=wanted.device)
    index[tokens] = torch.arange(len(tokens), device=wanted.device)
    return torch.where(wanted >= 0, index[wanted.clamp(min=0)], wanted)


def _counted(labels: Tensor) -> Tensor:
    return (labels != IGNORE).sum().clamp(min=1)
