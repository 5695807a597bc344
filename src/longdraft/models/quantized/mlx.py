"""Matrices of MLX's checkpoints in its affine mode.

An entry is code * scale + bias, in groups of consecutive inputs. Embeddings are quantized, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from longdraft.models.quantized.forms import PackedForm, codes_of, form_of_sums, sums
from longdraft.models.quantized.scheme import Scheme, group_size, setting
from longdraft.models.quantized.tensors import Checkpoint
from longdraft.ops.packed import Packed

NAME = "MLX"
BITS = (4, 8)


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
    return form_of_sums(*_numbers(settings | own if isinstance(own, dict) else settings))


def _numbers(settings: dict[str, Any]) -> tuple[int, int]:
    """Bits of a code, and inputs of a group."""
    setting(settings, NAME, "mode", ("affine",))
    return setting(settings, NAME, "bits", BITS), group_size(settings, NAME, 64)


def matrix(
    settings: dict[str, Any], files: Checkpoint, name: str, shape: tuple[int, int]
) -> Packed | Tensor:
    """The weights of a layer or the rows of an embedding. A layer may have settings of its own."""
    outputs, inputs = shape
    own = settings.get(name)
    bits, group = _numbers(settings | own if isinstance(own, dict) else settings)
    if group < 1 or inputs % group or inputs * bits % 32:
        raise files.error(f"{name[:80]} has {inputs} inputs, which do not fit groups of {group}")
    codes = codes_of(files.words(f"{name}.weight", (outputs, inputs * bits // 32)), bits)
    scale, bias = (
        files.scales(f"{name}.{leaf}", (outputs, inputs // group)) for leaf in ("scales", "biases")
    )
    return sums(codes, scale, bias.double(), group)
