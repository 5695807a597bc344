"""Attention whose scores have an added bias that is a function of the key's token (dynamic mask
attention, Doge).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor

from longdraft.backends.current_pass import CurrentPass
from longdraft.backends.features.feature import Attend, Call, Feature
from longdraft.errors import InputError


class BiasedKeys(Feature):
    """longest: how many tokens are attended to without dropping the keys of least bias."""

    models = "Doge"
    computed = "the bias is one more number of the cached key; longer texts are refused"

    def __init__(self, kind: str, longest: int):
        self.kind = kind
        self.longest = longest

    @classmethod
    def of(cls, hf: Any) -> Self | None:
        longest = unbiased_length(hf)
        return None if longest is None else cls(hf.config.get_text_config().model_type, longest)

    def around(self, p: CurrentPass) -> AbstractContextManager[object]:
        """Raises InputError for a position from which on keys are dropped."""
        if p.position is not None and int(p.position.max()) >= self.longest:
            fault = f"drops keys from {self.longest} tokens on, which longdraft does not"
            raise InputError(f"{self.kind} {fault}: give a shorter prompt, or ask for fewer tokens")
        return nullcontext()

    def attend(self, proceed: Attend, call: Call) -> Tensor:
        if call.mask is not None and has_biases(call.module):
            call.query, call.key = with_biases(call.query, call.key, call.mask, call.scale)
            call.mask = None
        return proceed(call)


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
