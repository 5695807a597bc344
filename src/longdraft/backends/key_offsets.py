"""The part of keys that all keys of a head have in common, which 8-bit codes leave out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.backends.decoder_layer import Attention, Rotation
from longdraft.backends.describe import described

POSITIONS = 32768  # over which a rotated bias is averaged


def key_offsets(hf: Any) -> dict[int, Tensor]:
    """[K,D] float32 for each layer whose keys have a bias: its mean over positions, as rotated.

    Biases can be large (Qwen2), most of all in the numbers that turn least from one position to the
    next. The mean does not depend on a key's
    position, so that codes can be read without knowing it. {} for a model that is not described.
    """
    decoder = described(hf)
    layers = decoder.layers if decoder is not None else ()
    offsets = dict[int, Tensor]()
    for i, layer in enumerate(layers):
        attention = layer.mixer
        if isinstance(attention, Attention) and (offset := _offset(attention)) is not None:
            offsets[i] = offset
    return offsets


@torch.no_grad()
def _offset(attention: Attention) -> Tensor | None:
    bias = getattr(attention.k.module, "bias", None)
    if bias is None or bias.is_meta or attention.k_norm is not None:
        return None
    keys = bias.double().view(-1, attention.dim)  # of the heads that this process has
    if attention.rotation is None:
        return keys.float()
    cos, sin = _mean_rotation(attention.rotation)
    n = len(cos)
    if attention.rotation.interleaved:
        pairs, rest = keys.split([2 * n, attention.dim - 2 * n], -1)
        a, b = pairs[:, ::2], pairs[:, 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(1)
        return torch.cat([turned, rest], -1).float()
    a, b, rest = keys.split([n, n, attention.dim - 2 * n], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).float()


def _mean_rotation(rotation: Rotation) -> tuple[Tensor, Tensor]:
    """The means of the cosines and of the sines of positions 0 to POSITIONS - 1, by their sums."""
    half = rotation.frequencies.double().cpu() / 2
    steady = half == 0
    size = (POSITIONS * half).sin() / (POSITIONS * half.sin()).masked_fill(steady, 1)
    size = size.masked_fill(steady, 1) * rotation.scaling
    middle = (POSITIONS - 1) * half
    return size * middle.cos(), size * middle.sin()
