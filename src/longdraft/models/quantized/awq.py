"""Matrices of AWQ checkpoints, as AutoAWQ writes them (version gemm).

An entry is (code - zero) * scale. The eight codes of a word are those of outputs 0, 2, 4, 6, 1, 3,
5 and 7, from its lowest bits on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdraft.models.quantized.forms import codes_of, differences, form_of_differences
from longdraft.models.quantized.scheme import Scheme, group_size, is_named, setting, texts
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

NAME = "AWQ"
BITS = 4
EACH = 32 // BITS  # codes in a word
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the codes of outputs 0 to 7 in a word


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of a config. Raises InputError for settings that are not read."""
    setting(settings, NAME, "bits", (BITS,))
    setting(settings, NAME, "version", ("gemm", "GEMM"))
    leaves = ("qweight", "qzeros", "scales")
    group = group_size(settings, NAME, 128)
    form = form_of_differences(BITS, group, settings.get("zero_point") is False)
    kept = ["lm_head", *texts(settings, NAME, "modules_to_not_convert")]
    return Scheme(
        NAME,
        "qweight",
        leaves,
        partial(matrix, group),
        lambda name: None if is_named(name, kept) else form,
    )


def matrix(group: int, files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """The weights of a layer."""
    outputs, inputs = shape
    size = inputs if group == -1 else group
    if outputs % EACH or inputs % size:
        raise files.error(f"{name[:80]} has {outputs} outputs of {inputs} inputs, which do not fit")
    codes = _ordered(files.words(f"{name}.qweight", (inputs, outputs // EACH)))
    zeros = _ordered(files.words(f"{name}.qzeros", (inputs // size, outputs // EACH)))
    scale = files.scales(f"{name}.scales", (inputs // size, outputs)).T.contiguous()
    return differences(codes, zeros.to(torch.int16), scale, size)


def _ordered(words: Tensor) -> Tensor:
    """int32 [N,outputs/8] -> uint8 [outputs,N]."""
    codes = codes_of(words, BITS).unflatten(1, (-1, EACH))
    return codes[..., list(PLACES)].flatten(1).T.contiguous()
