"""Randomness as a pure function of (row seed, position, token).

So speculation cannot change what is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdraft.ops import native

# Salts of the seed: streams that are independent of the draws themselves.
ACCEPT = 0x5DEECE66D
RESIDUAL = 0x2545F4914F6CDD1D
DRAFT = 0x369DEA0F31A53F85


def _mix(x: Tensor) -> Tensor:
    """The finalizer of splitmix64 on wrapping int64; the masks make the shifts logical."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def row_seed(seed: int, row: int) -> int:
    """The seed of row (or prompt) `row` in a run with this seed.

    Row 0 uses the run's seed itself, as an int64. The other rows use 62 bits mixed from both
    numbers, so that two pairs of run and row hardly ever share a stream.
    """
    if row:
        return _mixed(_mixed(seed + 0x9E3779B97F4A7C15) + row * 0xD1B54A32D192ED03) >> 2
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _mixed(x: int) -> int:
    """The same finalizer for a Python integer of any size."""
    x &= (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ((1 << 64) - 1)
    return x ^ (x >> 31)


def uniform(seed: Tensor, position: Tensor, token: Tensor | int) -> Tensor:
    """Uniform numbers in the open (0, 1), float64: seed [B], position [B,T] -> [B,T,V].

    token: [V] or [B,T,V], or a number V for the tokens 0..V-1: the same bits, computed faster if
    there is a native build.
    """
    if isinstance(token, int):
        lib = native.library()
        if lib is not None and position.is_cpu:
            seed = seed.contiguous()
            position = position.contiguous()
            out = torch.empty(*position.shape, token, dtype=torch.float64)
            lib.longdraft_uniform(
                seed.data_ptr(), position.data_ptr(), *position.shape, token, out.data_ptr()
            )
            return out
        token = torch.arange(token, device=position.device)
    x = (
        _mix(seed * -7046029254386353131 + 1)[:, None, None]
        + _mix(position * 0x9E3779B9 + 7)[..., None]
    )
    x = _mix(_mix(x) + token * -3335678366873096957)
    # 52 bits: with 53 the sum would round up to 1
    return (((x >> 12) & ((1 << 52) - 1)).double() + 0.5) / (1 << 52)


def gumbel(seed: Tensor, position: Tensor, vocab: int, tokens: Tensor | None = None) -> Tensor:
    """Gumbel noise, float32: seed [B], position [B,T] -> [B,T,vocab].

    argmax(log p + noise) is a draw from p.
    tokens [N]: the noise of these alone [B,T,N], the same bits.
    """
    noise = uniform(seed, position, vocab)
    noise = noise if tokens is None else noise[..., tokens]
    return noise.log_().neg_().log_().neg_().float()


@dataclass(frozen=True)
class Warpers:
    """Settings that change a distribution before a draw, in this order.

    They are Transformers' logits warpers of these names.
    """

    temperature: float = 0.0  # 0: the most likely token, whatever the others say
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits: Tensor, warpers: Warpers, seed: Tensor, position: Tensor) -> Tensor | None:
    """argmax of warped logits + noise: logits [B,T,V], seed [B], position [B,T] -> tokens [B,T].

    Tokens beside the last one that top-k or top-p keeps are kept if their logits are equal or,
    within rounding, so are their sums. None where no native build can do it.
    """
    lib = native.library()
    if lib is None or not logits.is_cpu:
        return None
    logits = logits.float().contiguous()
    seed = seed.contiguous()
    position = position.contiguous()
    out = torch.empty(position.shape, dtype=torch.long)
    how = native.Warpers(**vars(warpers))
    lib.longdraft_draw(
        logits.data_ptr(), how, seed.data_ptr(), position.data_ptr(), *logits.shape, out.data_ptr()
    )
    return out


def argmax(scores: Tensor) -> Tensor:
    """The first token [...] of the largest score, of scores [...,V].

    torch's own takes ten times as long for a vocabulary: it looks at one score after another.
    """
    lines = scores.reshape(1, -1, scores.shape[-1])
    nowhere = torch.zeros(1, lines.shape[1], dtype=torch.long)  # positions: no noise is added
    found = draw(lines, Warpers(), nowhere[:, 0], nowhere) if lines.shape[1] else None
    return scores.argmax(-1) if found is None else found.view(scores.shape[:-1])
