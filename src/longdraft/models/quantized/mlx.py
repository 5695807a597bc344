"""Matrices of MLX's checkpoints in its modes affine, mxfp4 and nvfp4.

An entry is code * scale + bias, in groups of consecutive inputs, or a number of FP4 times a scale.
Embeddings are quantized, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdraft.models.quantized.forms import PackedForm, codes_of, form_of_sums, sums
from longdraft.models.quantized.fp4 import MXFP4, NVFP4, with_numbers, with_powers
from longdraft.models.quantized.scheme import Scheme, group_size, setting
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

NAME = "MLX"
BITS = (4, 8)
GROUPS = {"affine": 64, "mxfp4": 32, "nvfp4": 16}  # the usual inputs of a group, by mode
FORMS = {"mxfp4": MXFP4, "nvfp4": NVFP4}


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of a config. Raises InputError for settings that are not read."""
    _numbers(settings)
    for own in settings.values():
        if isinstance(own, dict):
            _numbers(settings | own)
    leaves = ("weight", "scales", "biases")
    return Scheme(
        NAME, "scales", leaves, partial(matrix, settings), partial(_form, settings), tables=True
    )


def _form(settings: dict[str, Any], name: str) -> PackedForm | None:
    own = settings.get(name)
    if own is False:
        return None
    mode, bits, group = _numbers(settings | own if isinstance(own, dict) else settings)
    return form_of_sums(bits, group) if mode == "affine" else FORMS[mode]


def _numbers(settings: dict[str, Any]) -> tuple[str, int, int]:
    """The mode, bits of a code, and inputs of a group."""
    mode = setting(settings, NAME, "mode", tuple(GROUPS))
    usual = GROUPS[mode]
    if mode == "affine":
        return mode, setting(settings, NAME, "bits", BITS), group_size(settings, NAME, usual)
    setting(settings, NAME, "group_size", (usual,))
    return mode, setting(settings, NAME, "bits", (4,)), usual


def matrix(
    settings: dict[str, Any], files: Checkpoint, name: str, shape: tuple[int, int]
) -> Packed | Tensor:
    """The weights of a layer or the rows of an embedding. A layer may have settings of its own."""
    outputs, inputs = shape
    own = settings.get(name)
    mode, bits, group = _numbers(settings | own if isinstance(own, dict) else settings)
    if group < 1 or inputs % group or inputs * bits % 32:
        raise files.error(f"{name[:80]} has {inputs} inputs, which do not fit groups of {group}")
    codes = codes_of(files.words(f"{name}.weight", (outputs, inputs * bits // 32)), bits)
    if mode != "affine":
        return _fp4(mode, files, name, codes)
    scale, bias = (
        files.scales(f"{name}.{leaf}", (outputs, inputs // group)) for leaf in ("scales", "biases")
    )
    return sums(codes, scale, bias.double(), group)


def _fp4(mode: str, files: Checkpoint, name: str, codes: Tensor) -> Packed:
    """Numbers of 4 bits; scales are powers of 2, or numbers of FP8 in groups of 16."""
    leaf = f"{name}.scales"
    stored = files.of(leaf, (torch.uint8,), (len(codes), codes.shape[1] // GROUPS[mode]))
    if mode == "mxfp4":
        return with_powers(files, leaf, codes, stored)
    return with_numbers(files, leaf, codes, stored.view(torch.float8_e4m3fn).float())
