"""Matrices of GPTQ checkpoints, as AutoGPTQ and GPTQModel write them.

An entry is (code - zero) * scale, in groups of consecutive inputs or, after sorting by activations,
in the groups that g_idx names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdraft.models.quantized.forms import (
    PackedForm,
    codes_of,
    differences,
    form_of_differences,
    unpacked,
)
from longdraft.models.quantized.scheme import FormOf, Scheme, group_size, matches, setting
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

NAME = "GPTQ"
BITS = (4, 8)
FORMATS = ("gptq", "gptq_v2")  # the first stores zeros minus 1


def scheme(settings: dict[str, Any]) -> Scheme:
    """The scheme of a config. Raises InputError for settings that are not read."""
    bits = setting(settings, NAME, "bits", BITS)
    above = 1 if setting(settings, NAME, "checkpoint_format", FORMATS) == "gptq" else 0
    group = group_size(settings, NAME, -1)
    leaves = ("qweight", "qzeros", "scales", "g_idx")
    return Scheme(
        NAME, "qweight", leaves, partial(matrix, bits, group, above), _form(settings, bits, group)
    )


def _form(settings: dict[str, Any], bits: int, group: int) -> FormOf:
    """Sorted inputs are unpacked; GPTQModel names layers that are not quantized after "-:"."""
    is_sorted = settings.get("desc_act") is True and group != -1
    form = None
    if not is_sorted:
        form = form_of_differences(bits, group, settings.get("sym") is not False)
    dynamic = settings.get("dynamic")
    dynamic = dynamic if isinstance(dynamic, dict) else {}
    left_out = [p[2:] for p in dynamic if p.startswith("-:")]

    def of(name: str) -> PackedForm | None:
        whole = name == "lm_head" and settings.get("lm_head") is not True
        return None if whole or any(matches(p, name) for p in left_out) else form

    return of


def matrix(
    bits: int, group: int, above: int, files: Checkpoint, name: str, shape: tuple[int, int]
) -> Packed | Tensor:
    """The weights of a layer; float32 if its groups are not consecutive inputs."""
    outputs, inputs = shape
    each = 32 // bits  # codes in a word
    if outputs % each or inputs % each:
        raise files.error(f"{name[:80]} has {outputs} outputs of {inputs} inputs, which do not fit")
    size = inputs if group == -1 else group
    groups = -(-inputs // size)
    words = files.words(f"{name}.qweight", (inputs // each, outputs))
    codes = codes_of(words.T, bits)
    stored = files.words(f"{name}.qzeros", (groups, outputs // each))
    zeros = codes_of(stored, bits).T.to(torch.int16) + above
    scale = files.scales(f"{name}.scales", (groups, outputs)).T.contiguous()
    ordinary = torch.arange(inputs) // size
    index = group_index(files, f"{name}.g_idx", inputs, groups)
    if index is not None and not torch.equal(index, ordinary):
        return unpacked(codes, zeros, scale, index)
    return differences(codes, zeros.contiguous(), scale, size)


def group_index(files: Checkpoint, name: str, inputs: int, groups: int) -> Tensor | None:
    """int64 [inputs]: the group of each input; None: the checkpoint does not name them."""
    if not files.has(name):
        return None
    index = files.of(name, (torch.int32, torch.int64), (inputs,)).long()
    if int(index.min()) < 0 or int(index.max()) >= groups:
        raise files.error(f"{name[:80]} names groups beyond the {groups} that there are")
    return index
