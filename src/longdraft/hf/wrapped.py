"""The LM of a Transformers model that a program already has.

The model itself is not changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig

from longdraft.errors import InputError
from longdraft.models.classes import is_multimodal
from longdraft.models.lm import LM
from longdraft.models.multimodal import text_model
from longdraft.models.support import in_one_line, verify


@dataclass
class _Entry:
    """An LM that was made when the model had this state."""

    state: tuple[Any, ...]
    lm: LM


_KNOWN: WeakKeyDictionary[Any, _Entry] = WeakKeyDictionary()
_LOCK = threading.Lock()


def lm_of(model: Any) -> LM:
    """The model's LM: made once, and again only after its weights or modules have changed.

    It has separate modules over the same weights: attention and hooks are set on these, not on the
    model's. Raises InputError.
    """
    with _LOCK:
        state = _state(model)
        entry = _KNOWN.get(model)
        if entry is None or entry.state != state:
            entry = _Entry(state, _wrap(model))
            _KNOWN[model] = entry
        return entry.lm


def _wrap(model: Any) -> LM:
    devices = sorted({str(t.device) for t in model.parameters()})
    if len(devices) != 1:
        raise InputError(
            f"the model is on {', '.join(devices)}, and longdraft uses one device: load it on one"
        )
    with torch.inference_mode(False):
        twin = deepcopy(model, {id(t): t for t in _tensors(model)})
        twin.generation_config = GenerationConfig()  # each call of `generate` has its own
        if is_multimodal(model.config):
            twin = in_one_line(model.config.model_type, partial(text_model, twin))
        verify(twin)
        return LM(twin, model.name_or_path)


def _tensors(model: Any) -> Iterable[Tensor]:
    return (*model.parameters(), *model.buffers())


def _state(model: Any) -> tuple[Any, ...]:
    """A value that changes whenever weights, modules or hooks are replaced, moved or written to.

    Writes through `.data` leave no trace on a tensor. Matrices are read where they lie, so the next
    pass sees such a write; norms and biases are copied in float32, so their contents are compared,
    a megabyte for the largest models.
    """
    weights = [
        (id(t), t.data_ptr(), t.dtype, 0 if t.is_inference() else t._version)
        for t in _tensors(model)
    ]
    hooks = [
        (id(m), *m._forward_pre_hooks, *m._forward_hooks, "forward" in vars(m))
        for m in model.modules()
    ]
    return (*weights, *hooks, _copied(model))


@torch.no_grad()
def _copied(model: Any) -> bytes:
    """A digest of all vectors of the model."""
    vectors = [t.detach() for t in _tensors(model) if t.dim() == 1 and t.is_floating_point()]
    if len({t.device for t in vectors}) != 1:  # `_wrap` refuses a model on several devices
        return b""
    whole = torch.cat([t.contiguous().view(torch.uint8) for t in vectors]).cpu()
    return blake2b(whole.numpy().tobytes(), digest_size=16).digest()
