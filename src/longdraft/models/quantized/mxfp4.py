"""The experts of gpt-oss in MXFP4: numbers of 4 bits, and a power of 2 for each 32 inputs.

Rows of gates and of up alternate in one tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.models.quantized.forms import PackedForm, codes_of
from longdraft.models.quantized.fp4 import MXFP4, with_powers
from longdraft.models.quantized.scheme import OfExperts, Scheme
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import GROUP, Packed

MARKER = "gate_up_proj_blocks"
LEAVES = (MARKER, "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales")


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of gpt-oss, which has no settings."""
    return Scheme("MXFP4", MARKER, LEAVES, matrix, _form)


def _form(name: str) -> PackedForm | None:
    return MXFP4 if ".experts." in name else None


def matrix(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """Always an InputError: only experts are stored so."""
    raise files.error(f"{name[:80]} is no layer of experts")


def experts(files: Checkpoint, name: str, own: Any) -> OfExperts:
    """Gates, up and down of all experts, one after the other.

    own: the module, whose matrices are [count,inputs,outputs].
    """
    gate, up = _parts(files, f"{name}.gate_up_proj", own.gate_up_proj.shape, 2)
    (down,) = _parts(files, f"{name}.down_proj", own.down_proj.shape, 1)
    return gate, up, down


def _parts(files: Checkpoint, name: str, shape: Any, parts: int) -> list[Packed]:
    """Every `parts`-th row of all experts, from the first, the second row on and so on."""
    count, inputs, outputs = shape
    if inputs % GROUP:
        raise files.error(f"{name[:80]} has {inputs} inputs, which are no multiple of {GROUP}")
    groups = inputs // GROUP
    blocks = files.of(f"{name}_blocks", (torch.uint8,), (count, outputs, groups, 16))
    powers = files.of(f"{name}_scales", (torch.uint8,), (count, outputs, groups))
    made = list[Packed]()
    for i in range(parts):
        rows = blocks[:, i::parts].flatten(0, 1).flatten(1)
        groups = powers[:, i::parts].flatten(0, 1)
        made.append(with_powers(files, f"{name}_scales", codes_of(rows, 4), groups))
    return made
