"""Quantizes the weights of a Transformers model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.backends.features.latent import absorbed_linears
from longdraft.backends.packed_experts import PackedExperts, can_be_packed, shapes
from longdraft.backends.packed_linear import FEWEST_OUTPUTS, PackedLinear, replace, replace_linears
from longdraft.errors import InputError
from longdraft.ops.packed import BLOCK, GROUP, quantized

BITS = {"int8": 8, "int4": 4}
SCALES = {8: 2, 4: 4}  # bytes of a group's scale, and of its offset if it has one, as halves


@torch.no_grad()
def quantize(hf: Any, kind: str) -> None:
    """Quantize a model's linear layers and experts to "int8" or "int4"; the output matrix always
    has 8 bits.

    Layers that have as few bits already, whose inputs are no multiple of 32, or that have fewer
    than 16 outputs (the gate of a shared expert) stay unchanged, as do what expands latents, and
    linear layers that compute more than a product. One layer after the other, so that memory never
    holds two whole models.
    Raises InputError where a model has nothing to quantize.
    """
    head = hf.get_output_embeddings()
    if not any(_can_be_packed(m) and m is not head for m in hf.modules()) and not _experts(hf):
        raise InputError(
            f"no layer of this {hf.config.model_type} can be quantized: use its weights unchanged"
        )
    bits = _finer(hf, kind)
    replace_linears(
        hf, ((name, quantized(hf.get_submodule(name).weight, b)) for name, b in bits.items())
    )
    for name in _experts(hf):
        replace(hf, name, PackedExperts.of(hf.get_submodule(name), BITS[kind]))


def bytes_saved(hf: Any, kind: str, each: float = 1.0) -> float:
    """How many bytes of weights a model has fewer after `quantize`, or a step reads fewer that
    reads this fraction of the experts; computed from shapes.
    """
    layers = [(hf.get_submodule(name), bits) for name, bits in _finer(hf, kind).items()]
    now = sum(p.nbytes for m, _ in layers for p in m.parameters() if p is not m.bias)
    then = sum(m.out_features * _row_bytes(m.in_features, bits) for m, bits in layers)
    for name in _experts(hf):
        for matrix, shape in shapes(hf.get_submodule(name)):
            now += each * matrix.nbytes
            then += each * shape[0] * _row_bytes(shape[1], BITS[kind])
    return now - then


def _row_bytes(inputs: int, bits: int) -> float:
    """Bytes of a quantized row, which has codes and scales of whole blocks."""
    return -(-inputs // BLOCK) * BLOCK * (bits / 8 + SCALES[bits] / GROUP)


def _finer(hf: Any, kind: str) -> dict[str, int]:
    """The names of linear layers that have more bits than `kind` gives them, with those bits."""
    head = hf.get_output_embeddings()
    matrices = absorbed_linears(hf)
    layers = {name: m for name, m in hf.named_modules() if _can_be_packed(m) and m not in matrices}
    bits = {name: 8 if m is head else BITS[kind] for name, m in layers.items()}
    return {name: b for name, b in bits.items() if getattr(hf.get_submodule(name), "bits", 32) > b}


def _experts(hf: Any) -> list[str]:
    """The names of experts that can be packed and are not."""
    return [name for name, m in hf.named_modules() if can_be_packed(m)]


def _can_be_packed(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear) and type(module) is not nn.Linear and not _is_linear(module):
        return False
    if not isinstance(module, nn.Linear | PackedLinear):
        return False
    return module.in_features % GROUP == 0 and module.out_features >= FEWEST_OUTPUTS


@torch.no_grad()
def _is_linear(module: nn.Linear) -> bool:
    """Whether a subclass computes what nn.Linear does: routers of experts return several tensors,
    for example.
    """
    if module.weight.dim() != 2 or module.weight.shape != (module.out_features, module.in_features):
        return False
    x = torch.linspace(
        -1, 1, module.in_features, device=module.weight.device, dtype=module.weight.dtype
    )[None]
    try:
        out: Any = type(module).forward(module, x)
    except (RuntimeError, TypeError, ValueError, IndexError):  # it wants other inputs
        return False
    expected = F.linear(x, module.weight, module.bias)
    return (
        isinstance(out, Tensor)
        and out.shape == expected.shape
        and torch.allclose(out, expected, 0.02, 0.02)
    )


def quantized_copy(hf: Any, kind: str) -> Any:
    """A model with quantized linear layers that shares everything else with hf, which is not
    changed.
    """
    shared = {id(x): x for x in (*hf.parameters(), *hf.buffers())}
    copy = deepcopy(hf, shared)
    quantize(copy, kind)
    return copy
