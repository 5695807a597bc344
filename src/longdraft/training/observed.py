"""Lets a function see the queries and keys of every attention layer of a model in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "longdraft_observed"
# the layer, queries and keys [B,H,T,D], their scale
Observer = Callable[[nn.Module, Tensor, Tensor, float], None]
_observers: list[Observer] = []


def _attention(module, query, key, value, mask, scaling=None, **kwargs):
    for observer in _observers:
        observer(module, query, key, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def observed(model, observer: Observer) -> Iterator[None]:
    """Call `observer` in every attention layer; the attention is SDPA."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    _observers.append(observer)
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _observers.remove(observer)
