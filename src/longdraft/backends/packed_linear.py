"""Linear layers with packed weights, in place of a Transformers model's own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longdraft.errors import InputError
from longdraft.ops.packed import GROUP, Packed, quantised

BITS = {"int8": 8, "int4": 4}


class PackedLinear(nn.Module):
    """Computes x W^T + bias with W = packed.dequantised(). The native backend reads the packed weights themselves."""

    def __init__(self, packed: Packed, bias: Tensor | None = None):
        super().__init__()
        self.bits, self.group = packed.bits, packed.group
        self.out_features, self.in_features = packed.shape
        self.codes = nn.Parameter(packed.codes, requires_grad=False)
        self.scale = nn.Parameter(packed.scale, requires_grad=False)
        self.offset = nn.Parameter(packed.offset, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def packed(self) -> Packed:
        return Packed(self.bits, self.codes.data, self.scale.data, self.offset.data, self.group)

    @property
    def weight(self) -> Tensor:
        """float32 [outputs,inputs], computed anew at each call."""
        return self.packed.dequantised()

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


@torch.no_grad()
def replace_linears(hf: nn.Module, packed: dict[str, Packed]) -> None:
    """Put packed weights in place of the linear layers of these names. A tied output matrix becomes one of its own."""
    for name, weights in packed.items():
        parent, _, leaf = name.rpartition(".")
        module = hf.get_submodule(parent)
        setattr(module, leaf, PackedLinear(weights, getattr(module, leaf).bias))


@torch.no_grad()
def quantise_linears(hf: Any, kind: str) -> None:
    """Quantise a model's linear layers to "int8" or "int4"; the output matrix always has 8 bits.

    Layers whose inputs are no multiple of 32 stay as they are, as do experts that are kept in one tensor. Raises
    InputError where nothing can be quantised.
    """
    head = hf.get_output_embeddings()
    linears = {name: m for name, m in hf.named_modules() if isinstance(m, nn.Linear) and m.in_features % GROUP == 0}
    if not linears.keys() - {name for name, m in linears.items() if m is head}:
        raise InputError(f"no layer of this {hf.config.model_type} can be quantised: use its weights as they are")
    replace_linears(hf, {name: quantised(m.weight, 8 if m is head else BITS[kind]) for name, m in linears.items()})


def quantised_copy(hf: Any, kind: str) -> Any:
    """A model with quantised linear layers that shares everything else with hf, which is not changed."""
    shared = {id(x): x for x in (*hf.parameters(), *hf.buffers())}
    copy = deepcopy(hf, shared)
    quantise_linears(copy, kind)
    return copy
