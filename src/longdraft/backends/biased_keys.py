"""Attention whose scores have an added bias that is a function of the key's token (dynamic mask
attention, Doge).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def has_biases(module: Any) -> bool:
    """Whether an attention module gives the biases of its keys as a mask."""
    return hasattr(module, "prepare_dynamic_mask") and hasattr(module, "keep_window_size")


def unbiased_length(hf: Any) -> int | None:
    """How many tokens such a model attends to without dropping the keys of least bias; None for
    another model.
    """
    return next(
        (int(m.keep_window_size) for m in hf.get_decoder().modules() if has_biases(m)), None
    )


def with_biases(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [B,H,W,D], k [B,K,W,D], biases [B,H,W,W] of the new keys -> q, k with a number more, whose
    product is the bias.

    So the biases are cached with the keys: q.k * scale + bias = [q 1].[k bias/scale] * scale.
    """
    bias = mask[:, :: query.shape[1] // key.shape[1], 0, :, None]
    return torch.cat([query, torch.ones_like(query[..., :1])], -1), torch.cat(
        [key, (bias / scale).to(key.dtype)], -1
    )
