"""Experts whose matrices a checkpoint stores one by one, put together as a layer's experts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longdraft.backends.packed_experts import (
    PackedExperts,
    can_be_packed,
    matrices_of,
    without_matrices,
)
from longdraft.backends.packed_linear import PackedLinear
from longdraft.models.quantized.scheme import OfExperts
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed, pack
from longdraft.ops.scales import PlainScales

PARTS = ("gate_proj", "up_proj", "down_proj")
Matrices = dict[str, Packed | Tensor | OfExperts]


def shape_of(modules: dict[str, Any], name: str) -> tuple[int, int] | None:
    """Outputs and inputs of a matrix of an expert; None: the name is of something else."""
    place = _place(name)
    own = modules.get(place[0]) if place else None
    if place is None or own is None or not can_be_packed(own):
        return None
    part = place[2]
    if part not in parts_of(own):
        return None
    first, down = (getattr(own, leaf) for leaf in matrices_of(own))
    matrix = down if part == "down_proj" else first
    _, outputs, inputs = (matrix.mT if own.is_transposed else matrix).shape
    halves = own.has_gate and part != "down_proj"
    return (outputs // 2 if halves else outputs), inputs


def parts_of(own: Any) -> tuple[str, ...]:
    """The matrices of each expert, as checkpoints name them."""
    return PARTS if own.has_gate else PARTS[1:]


def gathered(files: Checkpoint, matrices: Matrices, modules: dict[str, Any]) -> Matrices:
    """The matrices, those of a layer's experts together under the name of their module.

    Raises InputError if some of them are missing or cannot be packed.
    """
    made = Matrices()
    each = dict[str, dict[tuple[int, str], Packed]]()
    for name, matrix in matrices.items():
        place = _place(name)
        if place is None or place[0] not in modules:
            made[name] = matrix
        elif isinstance(matrix, Packed):
            each.setdefault(place[0], {})[place[1:]] = matrix
        else:
            raise files.error(f"{name[:80]} is an expert's matrix that cannot stay packed")
    for holder, found in each.items():
        count = len(modules[holder].down_proj)
        parts = parts_of(modules[holder])
        lacking = [(i, p) for p in parts for i in range(count) if (i, p) not in found]
        if lacking or len(found) != len(parts) * count:
            raise files.error(
                f"{holder[:80]} has {len(found)} quantized matrices of {count} experts"
            )
        made[holder] = tuple(stacked([found[i, part] for i in range(count)]) for part in parts)
    return made


def put(own: Any, parts: OfExperts) -> PackedExperts:
    """Experts with these matrices, and with the biases of `own`."""
    count = len(own.down_proj)
    biases: list[Tensor | None] = [None] * len(parts)
    if own.has_bias:
        first, last = (getattr(own, f"{name}_bias") for name in matrices_of(own))
        halves = (first,)
        if own.has_gate:
            halves = first.chunk(2, 1) if own.is_concatenated else (first[:, ::2], first[:, 1::2])
        biases = [x.detach().flatten().contiguous() for x in (*halves, last)]
    *gates, up, down = (PackedLinear(p, bias) for p, bias in zip(parts, biases, strict=True))
    return PackedExperts(without_matrices(own), count, gates[0] if gates else None, up, down)


def stacked(each: list[Packed]) -> Packed:
    """All rows of these matrices, one after the other, in a form that holds all of them."""
    if {p.bits for p in each} == {4, 5}:
        each = [_five(p) if p.bits == 4 else p for p in each]
    kinds = {x.dtype for p in each for x in p.scales.parts.values() if x.is_floating_point()}
    if len(kinds) > 1:
        each = [replace(p, scales=_floats(p)) for p in each]
    parts = {name: torch.cat([p.parts[name] for p in each]) for name in each[0].parts}
    return each[0].of(parts)


def _five(p: Packed) -> Packed:
    """The same matrix of 4 bits without offsets in 5 bits."""
    codes = (p.codes()[:, : p.inputs] + 16).to(torch.uint8)
    groups = p.inputs // p.group
    scales = p.scales.of({name: x[:, :groups] for name, x in p.scales.parts.items()})
    return pack(5, codes, scales, p.group)


def _floats(p: Packed) -> PlainScales:
    scale, offset = p.scales.numbers()
    return PlainScales(scale, offset)


def _place(name: str) -> tuple[str, int, str] | None:
    """The module of an expert's matrix, the expert's number, and the part."""
    match = re.fullmatch(r"(.+\.experts)\.(\d{1,5})\.(gate_proj|up_proj|down_proj)", name)
    return (match[1], int(match[2]), match[3]) if match else None
