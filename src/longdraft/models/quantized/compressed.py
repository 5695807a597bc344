"""Matrices of compressed-tensors checkpoints, as llm-compressor writes them.

An entry is (code - zero) * scale with signed codes of 4 or 8 bits, or a number of FP8 or FP4 times
a scale. The shapes of a layer's tensors say how it is quantized, since layers may differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdraft.errors import InputError
from longdraft.models.quantized.forms import (
    NARROW,
    PackedForm,
    codes_of,
    differences,
    form_of_differences,
    unpacked,
)
from longdraft.models.quantized.fp4 import MXFP4, NVFP4_DIVIDED, with_numbers, with_powers
from longdraft.models.quantized.gptq import group_index
from longdraft.models.quantized.scheme import INSTEAD, Scheme, group_size, is_named, setting, texts
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import GROUP, Packed

NAME = "compressed-tensors"
BITS = (4, 8)
FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
    "mxfp4-pack-quantized", "nvfp4-pack-quantized",
)  # fmt: skip
LEAVES = (
    "weight_scale", "weight_packed", "weight", "weight_zero_point", "weight_shape", "weight_g_idx",
    "weight_global_scale", "input_global_scale", "input_scale", "input_zero_point", "output_scale",
    "output_zero_point",
)  # fmt: skip
FP4_FORMS = {GROUP: MXFP4, NARROW: NVFP4_DIVIDED}  # by the inputs of a group
ROUNDED = (
    "this checkpoint is meant for activations of {} bits: its weights are exact, and activations "
    "have the arithmetic of --activations"
)


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of a config. Raises InputError for settings that are not read."""
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise InputError(f"the weights are quantized without config_groups: {INSTEAD}")
    setting(settings, NAME, "format", (*FORMATS, "mixed-precision"))
    rounded = None
    for group in groups.values():
        setting(group, NAME, "format", (None, *FORMATS))
        weights = group.get("weights")
        if not isinstance(weights, dict):
            raise InputError(f"the weights are quantized without a description: {INSTEAD}")
        setting(weights, NAME, "num_bits", BITS)
        setting(weights, NAME, "type", ("int", "float"))
        inputs = group.get("input_activations")
        if isinstance(inputs, dict):
            rounded = ROUNDED.format(str(inputs.get("num_bits", "fewer"))[:9])
    sparse = settings.get("sparsity_config")
    if settings.get("transform_config") or (sparse and sparse != {"format": "dense"}):
        raise InputError(f"the weights are sparse or transformed, not only quantized: {INSTEAD}")
    kept = texts(settings, NAME, "ignore")
    described = [(texts(g, NAME, "targets"), _form(g["weights"])) for g in groups.values()]

    def form(name: str) -> PackedForm | None:
        if is_named(name, kept):
            return None
        named = (f for targets, f in described if "Linear" in targets or is_named(name, targets))
        return next(named, None)

    return Scheme(NAME, "weight_scale", LEAVES, matrix, form, note=rounded)


def _form(weights: dict[str, Any]) -> PackedForm | None:
    """FP8 is unpacked, and so are groups of sorted inputs."""
    size = -1 if weights.get("group_size") is None else group_size(weights, NAME, -1)
    bits = setting(weights, NAME, "num_bits", BITS)
    if weights.get("type") == "float":
        return FP4_FORMS.get(size) if bits == 4 else None
    if weights.get("actorder") in ("group", True):
        return None
    return form_of_differences(bits, size, weights.get("symmetric") is not False)


def matrix(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """The weights of a layer; float32 for FP8, and if groups are not consecutive inputs."""
    outputs, inputs = shape
    if not files.has(f"{name}.weight_packed"):
        return _unpacked_codes(files, name, shape)
    if 2 * files.shape(f"{name}.weight_packed")[-1] == inputs:
        return _fp4(files, name, shape)
    if files.read(f"{name}.weight_shape").tolist() != list(shape):
        raise files.error(f"{name[:80]}.weight_shape is not {outputs}x{inputs}")
    words = files.shape(f"{name}.weight_packed")[-1]
    bits = next((b for b in BITS if -(-inputs * b // 32) == words), 0)
    if not bits:
        raise files.error(f"{name[:80]}.weight_packed has {words} words for {inputs} inputs")
    half = 1 << bits - 1
    packed = files.words(f"{name}.weight_packed", (outputs, words))
    codes = codes_of(packed, bits)[:, :inputs].contiguous()
    groups = _groups(files, name, shape)
    scale = files.scales(f"{name}.weight_scale", (outputs, groups))
    zeros = torch.full((outputs, groups), half, dtype=torch.int16)
    if files.has(f"{name}.weight_zero_point"):
        rows = -(-outputs * bits // 32)
        stored = files.words(f"{name}.weight_zero_point", (rows, groups))
        zeros = codes_of(stored.T, bits)[:, :outputs].T.to(torch.int16).contiguous()
    index = group_index(files, f"{name}.weight_g_idx", inputs, groups)
    if index is not None and not torch.equal(index, torch.arange(inputs) // (inputs // groups)):
        return unpacked(codes, zeros, scale, index)
    return differences(codes, zeros, scale, inputs // groups)


def _fp4(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed:
    """Numbers of 4 bits, two in a byte."""
    outputs, inputs = shape
    stored = files.of(f"{name}.weight_packed", (torch.uint8,), (outputs, inputs // 2))
    codes = codes_of(stored, 4)
    if files.has(f"{name}.weight_zero_point"):
        raise files.error(f"{name[:80]} has weight_zero_point beside numbers of 4 bits")
    leaf = f"{name}.weight_scale"
    if not files.has(f"{name}.weight_global_scale"):
        powers = files.of(leaf, (torch.uint8, torch.float8_e8m0fnu), (outputs, inputs // GROUP))
        return with_powers(files, leaf, codes, powers.view(torch.uint8))
    scale = files.of(leaf, (torch.float8_e4m3fn,), (outputs, inputs // NARROW)).float()
    whole = f"{name}.weight_global_scale"
    return with_numbers(files, leaf, codes, scale / files.scales(whole, (1,)))


def _groups(files: Checkpoint, name: str, shape: tuple[int, int]) -> int:
    """The number of a row's groups, of as many inputs each."""
    found = files.shape(f"{name}.weight_scale")
    if len(found) != 2 or found[1] < 1 or shape[1] % found[1]:
        sizes = "x".join(map(str, found))
        raise files.error(f"{name[:80]}.weight_scale is {sizes}, for {shape[1]} inputs")
    return found[1]


def _unpacked_codes(files: Checkpoint, name: str, shape: tuple[int, int]) -> Packed | Tensor:
    """The weights of a layer with a byte for each."""
    outputs, inputs = shape
    weight = files.of(f"{name}.weight", (torch.int8, torch.float8_e4m3fn), shape)
    leaf = f"{name}.weight_scale"
    whole = files.shape(leaf) in ((), (1,), (1, 1))
    if weight.dtype != torch.int8:
        return _fp8(files, name, weight, whole)
    groups = 1 if whole else _groups(files, name, shape)
    zeros = torch.zeros(outputs, groups, dtype=torch.int16)
    if whole:
        scale = files.scales(leaf, files.shape(leaf)).reshape(1, 1).expand(outputs, 1).contiguous()
    else:
        scale = files.scales(leaf, (outputs, groups))
    if files.has(f"{name}.weight_zero_point"):
        form = files.shape(leaf)
        stored = files.of(f"{name}.weight_zero_point", (torch.int8,), form)
        zeros = zeros + stored.reshape(-1, groups).to(torch.int16)
    if files.has(f"{name}.weight_g_idx"):
        raise files.error(f"{name[:80]} has weight_g_idx beside unpacked codes")
    codes = weight.view(torch.uint8) ^ 128
    return differences(codes, zeros + 128, scale, inputs // groups)


def _fp8(files: Checkpoint, name: str, weight: Tensor, whole: bool) -> Tensor:
    """Numbers of FP8 times the scale of the matrix, of their row, or of their block."""
    numbers = weight.float()
    if not numbers.isfinite().all():
        raise files.error(f"{name[:80]}.weight contains numbers that are not finite")
    leaf = f"{name}.weight_scale"
    form = files.shape(leaf)
    scale = files.scales(leaf, form)
    if whole:
        return numbers.mul_(scale.reshape(()))
    sizes = numbers.shape
    if len(form) != 2 or any(m < 1 or n % m for n, m in zip(sizes, form, strict=True)):
        wrong = "x".join(map(str, form))
        raise files.error(f"{leaf[:90]} is {wrong}, which does not divide the matrix into blocks")
    blocks = numbers.unflatten(1, (form[1], -1)).unflatten(0, (form[0], -1))
    return blocks.mul_(scale[:, None, :, None]).view(sizes)
