"""Matrices of bitsandbytes checkpoints.

In 8 bits, an entry is code * maximum / 127, with the maximum of its row. In 4 bits, codes select
from a table (NF4 or FP4), and blocks of consecutive entries share a maximum, which may be a code
itself.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.quantized.compressed import ROUNDED
from longdraft.models.quantized.forms import PackedForm, differences
from longdraft.models.quantized.scheme import INSTEAD, Scheme, is_named, texts
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

NAME = METHOD = "bitsandbytes"  # its name for readers, and in configs
STEPS = 127
ROWS = 0  # the order of codes; others are those of GPUs
STATE = "weight.quant_state.bitsandbytes__"
TYPES = ("nf4", "fp4")
MAXIMA = "weight.absmax"
OF_FOUR = ("weight", MAXIMA, "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
EIGHT_BITS = PackedForm(8, numbers=torch.float32)


def is_meant(settings: dict[str, Any]) -> bool:
    """Whether a config without the name of a method is one of bitsandbytes, as it once was."""
    flags = ("load_in_8bit", "load_in_4bit")
    return "quant_method" not in settings and any(settings.get(flag) is True for flag in flags)


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of a config. Raises InputError for settings that are not read."""
    kept = texts(settings, NAME, "llm_int8_skip_modules") or ["lm_head"]
    eight, four = (settings.get(f"load_in_{bits}bit") is True for bits in (8, 4))
    if eight == four:
        raise InputError(
            f"the weights are quantized by {NAME}, and not one of load_in_8bit and load_in_4bit "
            f"is true: {INSTEAD}"
        )
    if eight:
        leaves = ("weight", "SCB", "weight_format")
        return Scheme(
            NAME,
            "SCB",
            leaves,
            _of_rows,
            lambda name: None if is_named(name, kept) else EIGHT_BITS,
            note=ROUNDED.format(8),
        )
    leaves = (*OF_FOUR, *(f"{STATE}{kind}" for kind in TYPES))
    return Scheme(NAME, MAXIMA, leaves, _of_blocks, lambda name: None)


def _of_rows(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """The weights of a layer in 8 bits."""
    outputs, inputs = shape
    codes = files.of(f"{name}.weight", (torch.int8,), shape)
    order = f"{name}.weight_format"
    if files.has(order) and int(files.of(order, (torch.uint8,), ())) != ROWS:
        raise files.error(f"{name[:80]} has its codes in the order of a GPU")
    scale = (files.scales(f"{name}.SCB", (outputs,)).double() / STEPS).float()[:, None]
    zeros = torch.full((outputs, 1), 128, dtype=torch.int16)
    return differences(codes.view(torch.uint8) ^ 128, zeros, scale, inputs)


def _of_blocks(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """float32: the weights of a layer in 4 bits, whose table no packed form has."""
    state = _state(files, name)
    if state.get("shape") != list(shape):
        raise files.error(f"{name[:80]} is not {shape[0]}x{shape[1]}, as the config implies")
    count = shape[0] * shape[1]
    size = _size(files, name, state, "blocksize")
    maxima = _maxima(files, name, state, -(-count // size))
    stored = files.read(f"{name}.weight").contiguous().flatten().view(torch.uint8)
    if len(stored) != -(-count // 2):
        raise files.error(f"{name[:80]} has {len(stored)} bytes for {count} codes of 4 bits")
    codes = torch.stack([stored >> 4, stored & 15], -1).flatten()[:count]
    numbers = files.scales(f"{name}.weight.quant_map", (16,))[codes.int()]
    return numbers.mul_(maxima.repeat_interleave(size)[:count]).view(shape)


def _state(files: Checkpoint, name: str) -> dict[str, Any]:
    """The facts that a layer's other tensors do not tell: JSON in a tensor of bytes."""
    full = next((n for t in TYPES if files.has(n := f"{name}.{STATE}{t}")), None)
    if full is None:
        raise files.error(f"{name[:80]} has no quant_state of {' or '.join(TYPES)}")
    try:
        state = json.loads(bytes(files.of(full, (torch.uint8,), files.shape(full)).tolist()))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise files.error(f"{full[:120]} is damaged")
    return state


def _size(files: Checkpoint, name: str, state: dict[str, Any], key: str) -> int:
    size = state.get(key)
    if type(size) is not int or size < 1:
        raise files.error(f"{name[:80]} has a {key} of {str(size)[:40]}")
    return size


def _maxima(files: Checkpoint, name: str, state: dict[str, Any], blocks: int) -> Tensor:
    """float32 [blocks]."""
    full = f"{name}.{MAXIMA}"
    nested = f"{name}.weight.nested_absmax"
    if not files.has(nested):
        return files.scales(full, (blocks,))
    codes = files.of(full, (torch.uint8,), (blocks,))
    size = _size(files, name, state, "nested_blocksize")
    offset = state.get("nested_offset")
    if type(offset) not in (int, float) or not torch.tensor(offset).float().isfinite():
        raise files.error(f"{name[:80]} has a nested_offset of {str(offset)[:40]}")
    each = files.scales(nested, (-(-blocks // size),)).repeat_interleave(size)[:blocks]
    table = files.scales(f"{name}.weight.nested_quant_map", (256,))
    return table[codes.int()].mul_(each).add_(torch.tensor(offset).float())
