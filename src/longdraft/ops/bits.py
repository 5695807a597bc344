"""Moves bits within words, all words of a tensor at once."""

from __future__ import annotations

from torch import Tensor


def exchanged(words: Tensor, low: int, high: int) -> Tensor:
    """int32 or int64, with each bit moved to the position whose binary digits low < high are
    exchanged.
    """
    size = 8 * words.element_size()
    distance = (1 << high) - (1 << low)
    # positions with digit `low` set and digit `high` not set: the lower one of each pair
    mask = sum(1 << i for i in range(size) if i >> low & 1 and not i >> high & 1)
    differ = (words >> distance ^ words) & mask  # the mask drops what the sign was shifted into
    return words ^ differ ^ differ << distance


def exchange_halves(first: Tensor, second: Tensor, bits: int, mask: int) -> None:
    """Exchange, in place, bits of two tensors: those of `mask` in `second` with those that lie
    `bits` positions higher in `first`.
    """
    differ = first >> bits
    differ ^= second
    differ &= mask  # drops what the sign was shifted into
    second ^= differ
    differ <<= bits
    first ^= differ
